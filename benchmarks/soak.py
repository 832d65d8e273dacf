"""Kills the processes of a training at random, over and over, and compares it with an unbroken run.

    python -m benchmarks.soak --steps=40 --kills=30 --out=DIR

Two processes train together, each under launch/until_done.sh. At random moments, a third of them in
saves and a third in starts, one of them gets SIGKILL or SIGTERM. In the end the metrics of every
step (all but the clock's and the sampler's) and the final table must be those of a run that nobody
disturbed. Ends with 1 where they are not, or where the run had ended before all were sent.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from rime_jax.tracking import metrics

ROOT = pathlib.Path(__file__).parents[1]
PROCESSES = 2
# Small enough for two processes on two cores, and all parts of a run are in it.
SETTINGS = ("rollout.streams_per_step=2", "rollout.group_size=4", "env.trials=3", "eval.every=10",
            "eval.streams=4", "eval.rollouts=1", "eval.bootstrap=100", "track.checkpoint_every=1",
            "track.kl_every=5", "sampler.slots=16")

# Where a signal falls: anywhere in a step; while a checkpoint is written; before the first step.
MOMENTS = ("step", "save", "start")
# About what it takes from a start to its first step with programs that are compiled already.
START_S = 12.0
# A save of the small policy takes some hundredths of a second.
POLL_S = 0.002


class Hit(NamedTuple):
    """A signal that was sent, and where it was to fall (one of `MOMENTS`)."""

    number: signal.Signals
    moment: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of moments, processes and signals")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="is emptied first")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    runs = {name: arguments.out / name for name in ("unbroken", "disturbed")}
    began = time.monotonic()
    with started(runs["unbroken"], arguments.steps) as loops:
        finish(loops, runs["unbroken"])
    whole = time.monotonic() - began
    with started(runs["disturbed"], arguments.steps) as loops:
        hits = disturb(loops, runs["disturbed"], arguments, step_seconds(runs["unbroken"]))
        finish(loops, runs["disturbed"])
    logs = [log_of(runs["disturbed"], i).read_text() for i in range(PROCESSES)]
    different = compare(*map(numbers, runs.values()))
    print(json.dumps({
        "steps": arguments.steps,
        **{number.name: sum(hit.number == number for hit in hits)
           for number in (signal.SIGKILL, signal.SIGTERM)},
        **{f"in a {moment}": sum(hit.moment == moment for hit in hits) for moment in MOMENTS},
        "starts": sum(log.count("joins localhost") for log in logs),
        "saved and stopped": sum(log.count("has saved (status 75)") for log in logs),
        "failures": sum(log.count(" in a row; from the newest") for log in logs),
        "unbroken_s": round(whole), "all_s": round(time.monotonic() - began),
        "different": different}, indent=2))
    sys.exit(1 if different or len(hits) < arguments.kills else 0)


@contextlib.contextmanager
def started(directory: pathlib.Path, steps: int) -> Iterator[list[subprocess.Popen]]:
    """The loops around the processes of a run; what they print goes to `log_of`."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        address = f"localhost:{s.getsockname()[1]}"
    environment = {"JAX_COMPILATION_CACHE_DIR": str(directory.parent / "programs")} | os.environ | {
        "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    loops: list[subprocess.Popen] = []
    try:
        for i in range(PROCESSES):
            with log_of(directory, i).open("w") as log:
                loops.append(subprocess.Popen(
                    [ROOT / "launch/until_done.sh", "--retries", "1000", "--wait", "1",
                     sys.executable, "-m", "rime_jax.train",
                     "--config=experiments/alchemy/rime.py:tiny", "--set", *SETTINGS,
                     f"steps={steps}", f"run_dir={directory}", "--coordinator", address,
                     "--processes", str(PROCESSES), "--process", str(i)],
                    cwd=ROOT, env=environment, stdout=log, stderr=log))
        yield loops
    finally:
        for loop in loops:
            loop.terminate()


def disturb(
    loops: Sequence[subprocess.Popen], directory: pathlib.Path, arguments: argparse.Namespace,
    step_s: float,
) -> list[Hit]:
    """Sends the signals, spread over the run: the k-th not before step k × steps / kills.

    One that is to hit a start does not wait for that step: it follows the signal before it, and
    hits a process which that one has made start again.

    Args:
      step_s: seconds of a step, so that every moment of one can be hit.

    Returns:
      Those that were sent before the run had ended.
    """
    rng, hits, before = random.Random(arguments.seed), [], set()
    for kill in range(arguments.kills):
        number, moment = rng.choice((signal.SIGKILL, signal.SIGTERM)), rng.choice(MOMENTS)
        process, share = rng.randrange(PROCESSES), rng.random()
        if moment == "start":
            process = wait_for_start(loops, process, before)
            time.sleep(share * START_S)
        else:
            wait_for_step(loops, directory, kill * arguments.steps // arguments.kills)
            if moment == "step":
                time.sleep(share * step_s)
            else:
                wait_for_save(loops, directory)
        before = {training_of(loop.pid) for loop in loops}
        while not send(number, training_of(loops[process].pid)):
            if ended(loops):
                return hits
            # Between two starts a loop has no training to be hit.
            time.sleep(POLL_S)
        hits.append(Hit(number, moment))
        print(f"{number.name} to process {process}, {moment}, after step {last_step(directory)}",
              flush=True)
    return hits


def wait_for_start(
    loops: Sequence[subprocess.Popen], process: int, before: Collection[int | None]
) -> int:
    """A process with a training that was not there `before`; `process` where there are several."""
    order = [process, *(i for i in range(len(loops)) if i != process)]

    def new() -> list[int]:
        return [i for i in order if training_of(loops[i].pid) not in {None, *before}]

    wait_until(new, loops)
    return next(iter(new()), process)


def wait_for_step(loops: Sequence[subprocess.Popen], directory: pathlib.Path, step: int) -> None:
    wait_until(lambda: last_step(directory) >= step, loops)


def wait_for_save(loops: Sequence[subprocess.Popen], directory: pathlib.Path) -> None:
    """Until a checkpoint is begun; one that a signal has cut off stays incomplete."""
    left = saves(directory)
    wait_until(lambda: saves(directory) - left, loops)


def wait_until(condition: Callable[[], object], loops: Sequence[subprocess.Popen]) -> None:
    """Returns once the condition holds, or the run has ended."""
    while not condition() and not ended(loops):
        time.sleep(POLL_S)


def ended(loops: Sequence[subprocess.Popen]) -> bool:
    return all(loop.poll() is not None for loop in loops)


def saves(directory: pathlib.Path) -> set[str]:
    """Checkpoints that are not complete yet, or never were."""
    return {path.name for path in (directory / "checkpoints").glob("*")
            if not path.name.isdigit()}


def send(number: signal.Signals, process: int | None) -> bool:
    """Whether there was such a process."""
    if process is None:
        return False
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def step_seconds(directory: pathlib.Path) -> float:
    """Of an iteration of a run, on average."""
    lines = [line for line in metrics.read(directory / "metrics.jsonl") if line["step"]]
    parts = ("time/rollout_s", "time/update_s", "time/publish_s")
    return sum(line[part] for line in lines for part in parts) / len(lines)


def training_of(loop: int) -> int | None:
    """The process that a loop waits for, once it is a training."""
    try:
        children = pathlib.Path(f"/proc/{loop}/task/{loop}/children").read_text().split()
    except OSError:
        return None
    for child in map(int, children):
        try:
            command = pathlib.Path(f"/proc/{child}/cmdline").read_bytes()
            # A shell of the loop's own still has the loop's words.
            if b"rime_jax.train" in command and b"until_done" not in command:
                return child
        except OSError:
            pass
    return None


def finish(loops: Sequence[subprocess.Popen], directory: pathlib.Path) -> None:
    """Waits for all; one that fails ends the program with its last words."""
    for i, loop in enumerate(loops):
        if loop.wait():
            sys.exit(f"process {i} ended with {loop.returncode}:\n"
                     f"{log_of(directory, i).read_text()[-3000:]}")


def log_of(directory: pathlib.Path, process: int) -> pathlib.Path:
    """What a process printed in all its lives."""
    return directory.parent / f"{directory.name}.{process}.log"


def last_step(directory: pathlib.Path) -> int:
    return max((line["step"] for line in metrics.read(directory / "metrics.jsonl")), default=0)


def numbers(directory: pathlib.Path) -> dict[str, object]:
    """Every metric of every step, and the final table, by name."""
    found = {"final": json.loads((directory / "eval/final.json").read_text())}
    for line in metrics.read(directory / "metrics.jsonl"):
        found |= {f"step {line['step']}: {name}": value for name, value in line.items()
                  if not name.startswith(("time/", "sampler/"))}
    return found


def compare(one: dict[str, object], other: dict[str, object]) -> list[str]:
    """Names of what is different, or only in one of them; the first twenty."""
    return sorted(name for name in one.keys() | other.keys()
                  if one.get(name) != other.get(name))[:20]


if __name__ == "__main__":
    main()
