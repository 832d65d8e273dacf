"""What the tests of sweeps share: places without a training, and a cluster without machines."""

import io
import json
import os
import pathlib
import stat

from rime_jax.sweep import __main__ as sweep
from rime_jax.sweep import board, places

ROOT = pathlib.Path(__file__).parents[1]
ALCHEMY = f"{ROOT}/experiments/alchemy"


def write_result(job, step, gain=0.25):
    """What a run leaves behind at its end."""
    (job.directory / "eval").mkdir(parents=True, exist_ok=True)
    (job.directory / "metrics.jsonl").write_text(json.dumps(
        {"step": step, "performance/mean": 0.5}) + "\n")
    (job.directory / "eval" / "final.json").write_text(json.dumps(
        {"policies": {"initial": {"performance": [0.1, 0, 1], "gain": [0, 0, 0]},
                      f"step {step}": {"performance": [0.5, 0, 1], "gain": [gain, 0, 1]}}}))


class Pretended:
    """A place whose runs end at the second look, in success or, as often as planned, in failure."""

    def __init__(self, slots, fails, status=1):
        self.slots, self._fails, self._status = slots, dict(fails), status
        self.started, self.running, self.most = [], 0, 0

    def adopt(self, job):
        return None

    def start(self, job):
        self.started.append(job.name)
        self.running += 1
        self.most = max(self.most, self.running)
        return PretendedRun(self, job)

    def end(self, job):
        self.running -= 1
        if self._fails.get(job.name, 0) > 0:
            self._fails[job.name] -= 1
            return self._status
        write_result(job, job.config.steps)
        return 0


class PretendedRun:
    def __init__(self, place, job):
        self._place, self._job, self._looks = place, job, 0

    def poll(self):
        self._looks += 1
        return self._place.end(self._job) if self._looks == 2 else None

    def stop(self):
        return None


def run(planned, place, retries=1):
    out = io.StringIO()
    ended = sweep.Sweep(planned, place, retries, board.Board(out), poll_s=0).run()
    return ended, out.getvalue()


def names(planned):
    return [job.name for job in planned]


# Answers as the commands of a cluster do; its state is in files.
SBATCH = """#!/usr/bin/env bash
echo "$@" >>"$CLUSTER/submitted"
n=$(wc -l <"$CLUSTER/submitted")
echo $n >>"$CLUSTER/queue"
echo "$n;cluster"
"""
SQUEUE = """#!/usr/bin/env bash
cat "$CLUSTER/queue" 2>/dev/null || true
"""
SACCT = """#!/usr/bin/env bash
cat "$CLUSTER/state"
"""


def make_cluster(tmp_path, monkeypatch):
    """The directory of the stand-ins, which come first on the path."""
    where = tmp_path / "cluster"
    where.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("sacct", SACCT)):
        (where / name).write_text(text)
        (where / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("CLUSTER", str(where))
    monkeypatch.setenv("PATH", f"{where}:{os.environ['PATH']}")
    monkeypatch.setattr(places, "_ASK_S", 0.0)
    return where
