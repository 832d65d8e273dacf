"""Sweeps beside damaged files, killed programs, schedulers that answer wrongly and each other."""

import json

import pytest

from rime_jax import config as config_lib
from rime_jax import errors
from rime_jax.sweep import board, jobs, places
from rime_jax.sweep.board import State
from rime_jax.tracking import run_dir
from tests import scripted
from tests.sweeps import ALCHEMY, ROOT, Pretended, PretendedRun, make_cluster, names, run


@pytest.mark.parametrize("text", [
    '{"policies": {"step 3": [1]}}', '{"policies": {"step 3": {"gain": ["x"]}}}',
    '{"policies": {"step 3": {"gain": [true], "performance": [NaN]}}}',
    f'{{"policies": {{"step 3": {{"gain": [1{"0" * 400}]}}, "step {"9" * 5000}": {{}}}}}}',
])
@pytest.mark.parametrize("line", [
    '{"step": true}', '{"step": -5}', f'{{"step": 1{"0" * 400}}}', "[" * 100_000,
    f'{{"step": 0, "performance/mean": 1{"0" * 400}}}', '{"step": 0, "performance/mean": NaN}',
])
def test_numbers_that_are_none_are_not_shown(tmp_path, text, line):
    (job,) = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0], tmp_path)
    (job.directory / "eval").mkdir(parents=True)
    (job.directory / "eval" / "final.json").write_text(text)
    (job.directory / "metrics.jsonl").write_text(line + "\n")
    assert board.row(job, State.RUNNING, "", jobs.progress(job))[2:] == ("0/100", "", "", "")


def experiment_file(path, name, branch_from=""):
    path.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom experiments.alchemy import rime\n\n\n"
        "def get_config(size='published'):\n    c = rime.get_config(size)\n"
        f"    c.name, c.model.branch_from = {name!r}, {branch_from!r}\n    return c\n")
    return str(path)


def test_what_starts_from_its_own_end_is_refused(tmp_path):
    ring = [experiment_file(tmp_path / f"r{i}.py", f"r{i}", f"runs/r{(i + 1) % 3}/checkpoints/last")
            for i in range(3)]
    alone = experiment_file(tmp_path / "alone.py", "alone", "runs/alone/checkpoints/last")
    for sources in (ring, [alone]):
        with pytest.raises(config_lib.ConfigError, match="starts from its own end"):
            jobs.plan(sources, [0], tmp_path)


def test_a_chain_of_branch_points_is_run_in_its_order_and_blocked_as_a_whole(tmp_path):
    chain = [experiment_file(tmp_path / f"c{i}.py", f"c{i}",
                             f"runs/c{i - 1}/checkpoints/last" if i else "") for i in range(4)]
    planned = jobs.plan(chain[::-1], [0], tmp_path)
    assert names(planned) == [f"c{i}_seed0" for i in range(4)]
    ended, said = run(planned, Pretended(4, {"c0_seed0": 9}))
    assert not ended and said.count("blocked") == 3
    again = Pretended(4, {})
    assert run(planned, again)[0]
    assert again.started == names(planned)


def test_a_file_with_the_brackets_of_a_pattern_in_its_name_is_found(tmp_path):
    source = experiment_file(tmp_path / "a[1].py", "a")
    assert names(jobs.plan([source], [0], tmp_path)) == ["a_seed0"]


def test_seeds_that_are_too_large_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(config_lib.ConfigError, match="seed = 4294967297"):
        jobs.plan([f"{ALCHEMY}/rime.py:tiny,seed=4294967295"], [2], tmp_path)


def test_a_run_that_outlived_its_sweep_is_waited_for_and_then_gone_on_with(tmp_path):
    """So that neither a killed sweep nor two at once make a run fail that trains well."""
    (job,) = jobs.plan([f"{ALCHEMY}/rime.py:tiny,steps=3"], [0], tmp_path)
    place = places.Local(1)
    assert place.adopt(job) is None
    with run_dir.RunDir(job.directory).lock():
        found = place.adopt(job)
        assert found.poll() is None and "goes on" in found.stop()
    assert found.poll() == 0 and place.adopt(job) is None
    started = []

    class Elsewhere(Pretended):
        """A run that another sweep starts before this one can, and that ends too early."""

        def adopt(self, job):
            started.append(job.name)
            return PretendedRun(self, job) if len(started) == 2 else None

    place = Elsewhere(1, {job.name: 1})
    assert run([job], place, retries=0)[0]
    assert place.started == [job.name]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(),
                                   config_lib.ConfigError("squeue failed")])
def test_whatever_ends_a_sweep_its_runs_are_told(tmp_path, error):
    planned = [jobs.Job(f"run{i}", "", (), scripted.small_config(steps=3), tmp_path / f"run{i}")
               for i in range(2)]
    told = []

    class Failing(Pretended):
        def start(self, job):
            if self.started:
                raise error
            self.started.append(job.name)
            handle = PretendedRun(self, job)
            handle.poll = lambda: 143 if told else None
            handle.stop = lambda: told.append(job.name)
            return handle

    if isinstance(error, KeyboardInterrupt):
        assert not run(planned, Failing(2, {}))[0]
    else:
        with pytest.raises(type(error)):
            run(planned, Failing(2, {}))
    assert told == ["run0"]


def test_what_a_run_printed_cannot_command_the_terminal(tmp_path):
    (job,) = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0], tmp_path)
    places.log_of(job).parent.mkdir(parents=True)
    places.log_of(job).write_bytes(b"\x1b]0;title\x07\x1b[2J\xff\x00\xe2\x80\xaewords")
    _, said = run([job], Pretended(1, {job.name: 9}), retries=0)
    assert "words" in said and said.replace("\n", "").isprintable()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    return make_cluster(tmp_path, monkeypatch)


@pytest.mark.parametrize("text", ["[]", "3", "null", "{", "[" * 100_000,
                                  '{"rime_tiny_seed0": 3}', '{"rime_tiny_seed0": "1; rm -rf x"}'])
def test_a_damaged_list_of_slurm_jobs_is_none(tmp_path, cluster, text):
    (job,) = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0], tmp_path)
    (tmp_path / "slurm.json").write_text(text)
    place = places.Slurm(tmp_path, [], slots=1)
    assert place.adopt(job) is None
    assert place.start(job).poll() is None
    assert json.loads((tmp_path / "slurm.json").read_text()) == {job.name: "1"}


def test_a_slurm_job_goes_on_while_the_scheduler_is_silent_or_confused(tmp_path, cluster):
    """A second job of the same run would train in its directory."""
    (job,) = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0], tmp_path)
    handle = places.Slurm(tmp_path, [], slots=1).start(job)
    assert handle.poll() is None
    for squeue, sacct in (("exit 1", "exit 1"), ("kill $$", "exit 1"),
                          ("printf '\\xff\\x00garbage\\n'", "echo RUNNING"),
                          ("true", "echo PENDING")):
        for name, text in (("squeue", squeue), ("sacct", sacct)):
            (cluster / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        assert handle.poll() is None, (squeue, sacct)
    (cluster / "sacct").write_text("#!/usr/bin/env bash\nprintf '\\xffgarbage'\n")
    assert handle.poll() == 1
    (cluster / "squeue").write_text("#!/usr/bin/env bash\nexit 1\n")
    with pytest.raises(errors.TransientError, match="squeue failed"):
        places.Slurm(tmp_path, [], slots=1).queued()


@pytest.mark.parametrize(
    "answer", ["", "garbage", "-1", "\\xff\\xfe", "1 2", "Submitted batch job"])
def test_an_answer_of_sbatch_that_is_no_number_is_said(tmp_path, cluster, answer):
    (job,) = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0], tmp_path)
    (cluster / "sbatch").write_text(f"#!/usr/bin/env bash\nprintf -- '{answer}'\n")
    with pytest.raises(config_lib.ConfigError, match="instead of a job's number"):
        places.Slurm(tmp_path, [], slots=1).start(job)
