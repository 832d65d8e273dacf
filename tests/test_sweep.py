"""Sweeps: which runs there are, what they wait for, what is skipped, started again and said."""

import io
import os
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax import config as config_lib
from rime_jax import errors
from rime_jax.sweep import __main__ as sweep
from rime_jax.sweep import board, jobs, places
from rime_jax.sweep.board import State
from tests import scripted
from tests.sweeps import ALCHEMY, ROOT, Pretended, make_cluster, names, run, write_result


@pytest.mark.parametrize("domain", ["alchemy", "codebase"])
def test_all_experiments_of_a_domain_are_one_sweep(tmp_path, domain):
    planned = jobs.plan([f"{ROOT}/experiments/{domain}/*.py:tiny,steps=3"], [0], tmp_path)
    files = list((ROOT / "experiments" / domain).glob("*.py"))
    assert len(planned) == len(files) == len(set(names(planned)))
    for job in planned:
        assert job.config.steps == 3 and job.directory == tmp_path / job.name
        if job.after is not None:
            before = planned[names(planned).index(job.after)]
            assert names(planned).index(job.after) < names(planned).index(job.name)
            assert f"model.branch_from={before.directory}/checkpoints/last" in job.settings
    assert {job.name.removeprefix("codebase_") for job in planned if job.after is not None} == {
        f"{name}_tiny_seed0" for name in ("co_train_continued", "decoupled", "frozen_writer")}


def test_seeds_are_runs_of_their_own_and_start_from_the_branch_point_of_their_seed(tmp_path):
    planned = jobs.plan([f"{ALCHEMY}/branch_point.py:tiny", f"{ALCHEMY}/decoupled.py:tiny"],
                        [0, 7], tmp_path)
    by_name = {job.name: job for job in planned}
    assert set(by_name) == {f"{name}_tiny_seed{seed}"
                            for name in ("branch_point", "decoupled") for seed in (0, 7)}
    for seed in (0, 7):
        assert by_name[f"decoupled_tiny_seed{seed}"].after == f"branch_point_tiny_seed{seed}"
    for name in ("branch_point", "decoupled"):
        first, second = (by_name[f"{name}_tiny_seed{seed}"].config.seed for seed in (0, 7))
        assert second == first + 7


def test_what_repeats_the_numbers_of_another_run_is_not_run(tmp_path):
    """At the published size values_shown is rime."""
    planned = jobs.plan([f"{ALCHEMY}/rime.py", f"{ALCHEMY}/values_shown.py"], [0], tmp_path)
    assert [job.same_as for job in planned] == [None, "rime_seed0"]
    place = Pretended(1, {})
    assert run(planned, place)[0]
    assert place.started == ["rime_seed0"]


@pytest.mark.parametrize(("patterns", "told"), [
    (["absent/*.py:tiny"], r"absent/\*\.py:tiny: no such file"),
    ([f"{ALCHEMY}/decoupled.py:tiny"], "starts from runs/branch_point_tiny, which is not there"),
    ([f"{ALCHEMY}/rime.py:tiny,steps=3", f"{ALCHEMY}/rime.py:tiny,steps=4"],
     "different experiments of one name"),
    ([f"{ALCHEMY}/rime.py:tiny,steps=-3", "absent.py"], r"(?s)steps = -3.*absent\.py"),
])
def test_a_sweep_that_cannot_be_is_refused_before_anything_runs(tmp_path, patterns, told):
    with pytest.raises(config_lib.ConfigError, match=told):
        jobs.plan(patterns, [0], tmp_path)


def test_finished_runs_are_skipped_and_failed_ones_started_again(tmp_path):
    sources = [f"{ALCHEMY}/{name}.py:tiny,steps=3"
               for name in ("rime", "cod", "branch_point", "decoupled", "horizon_1")]
    planned = jobs.plan(sources, [0], tmp_path)
    write_result(planned[names(planned).index("cod_tiny_seed0")], 3)
    write_result(planned[names(planned).index("horizon_1_tiny_seed0")], 2)  # of fewer steps
    place = Pretended(2, {"rime_tiny_seed0": 1, "branch_point_tiny_seed0": 9})
    ended, said = run(planned, place)
    assert not ended and place.most == 2
    assert sorted(place.started) == sorted(
        ["rime_tiny_seed0"] * 2 + ["branch_point_tiny_seed0"] * 2 + ["horizon_1_tiny_seed0"])
    assert "blocked" in said and "branch_point_tiny_seed0 has failed" in said
    again = Pretended(2, {})
    assert run(planned, again)[0]
    assert sorted(again.started) == ["branch_point_tiny_seed0", "decoupled_tiny_seed0"]


@settings(max_examples=30, deadline=None)
@given(slots=st.integers(1, 4), retries=st.integers(0, 2),
       fails=st.dictionaries(st.integers(0, 5), st.integers(1, 4)))
def test_every_run_ends_finished_or_failed_after_its_retries(tmp_path_factory, slots, retries,
                                                             fails):
    out = tmp_path_factory.mktemp("sweep")
    planned = [jobs.Job(f"run{i}", "", (), scripted.small_config(steps=3), out / f"run{i}")
               for i in range(6)]
    place = Pretended(slots, {f"run{i}": n for i, n in fails.items()})
    ended, _ = run(planned, place, retries)
    assert place.most <= slots and place.running == 0
    for i in range(6):
        assert place.started.count(f"run{i}") == min(fails.get(i, 0), retries) + 1
    assert ended == all(n <= retries for n in fails.values())


def test_damaged_files_of_a_run_count_as_no_progress(tmp_path):
    (job,) = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0], tmp_path)
    assert jobs.progress(job) == jobs.Progress(0, False, None, None)
    (job.directory / "eval").mkdir(parents=True)
    for text in ('{"policies": 3}', "[[", '{"policies": {"step 100": {"gain": "x"}}}', "\x00"):
        (job.directory / "eval" / "final.json").write_text(text)
        (job.directory / "metrics.jsonl").write_text(
            '{"step": 4, "performance/mean": 0.5}\n{"step": 5, "perf')
        at = jobs.progress(job)
        assert (at.step, at.performance, at.gain) == (4, 0.5, None)


def test_a_terminal_shows_one_line_a_run_within_its_size(tmp_path, monkeypatch):
    planned = jobs.plan([f"{ALCHEMY}/*.py:tiny"], [0], tmp_path)
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "60")
    out = io.StringIO()
    out.isatty = lambda: True
    states = {job.name: State.WAITING for job in planned}
    at = {job.name: jobs.progress(job) for job in planned}
    shown = board.Board(out)
    shown.show(planned, states, {}, at)
    shown.show(planned, states, {}, at)
    lines = out.getvalue().split("\x1b[J")[0].splitlines()
    assert len(lines) < 10 and "more" in lines[-1]
    assert all(len(line.replace("\x1b[K", "")) < 60 for line in lines)


def test_a_dry_run_prints_the_commands_and_why_not_the_rest(tmp_path, capsys):
    arguments = [f"{ALCHEMY}/branch_point.py:tiny,steps=3", f"{ALCHEMY}/decoupled.py:tiny",
                 "--out", str(tmp_path), "--dry-run"]
    sweep.main(arguments)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# branch_point_tiny_seed0: new"
    assert lines[1].startswith("python -m rime_jax.train --config=")
    assert f"run_dir={tmp_path}/branch_point_tiny_seed0" in lines[1]
    assert lines[2] == "# decoupled_tiny_seed0: new, after branch_point_tiny_seed0"
    write_result(jobs.plan([arguments[0]], [0], tmp_path)[0], 3)
    sweep.main(arguments)
    assert capsys.readouterr().out.splitlines()[0] == (
        "# branch_point_tiny_seed0: finished its 3 steps, skipped")


def test_a_sweep_trains_and_a_second_one_has_nothing_to_do(tmp_path):
    """The real program over a real run of seconds; the run in two sizes of steps."""
    file = tmp_path / "mine.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests import scripted\n\n\n"
        "def get_config():\n    return scripted.small_config(\n"
        f"        name='mine', model__path={scripted.warm_model()!r}, learner__row_tokens=128,\n"
        "        sampler__slots=24, sampler__prefill_chunks=(16,), eval__streams=2,\n"
        "        eval__rollouts=1, eval__bootstrap=100)\n")
    command = [sys.executable, str(ROOT / "launch" / "sweep.py"), f"{file}:steps=1",
               "--out", str(tmp_path / "out")]
    first = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "mine_seed0" in first.stdout and "1/1" in first.stdout
    assert (tmp_path / "out" / "mine_seed0" / "eval" / "final.md").is_file()
    assert "step" in (tmp_path / "out" / "logs" / "mine_seed0.log").read_text()
    second = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert second.returncode == 0 and "before this sweep" in second.stdout


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    return make_cluster(tmp_path, monkeypatch)


def test_a_slurm_job_is_found_again_by_the_next_sweep(tmp_path, cluster):
    (job,) = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0], tmp_path)
    place = places.Slurm(tmp_path, ["--partition=tpu"], slots=10)
    handle = place.start(job)
    assert handle.poll() is None
    assert "--partition=tpu" in (cluster / "submitted").read_text()
    assert "rime_jax.train" in (cluster / "submitted").read_text()
    found = places.Slurm(tmp_path, [], slots=10).adopt(job)
    assert found is not None and found.poll() is None
    assert "scancel 1" in found.stop()
    (cluster / "queue").write_text("")
    for state, status in (("COMPLETED|0:0", 0), ("FAILED|1:0", 1), ("TIMEOUT|0:0", 1),
                          ("FAILED|75:0", errors.STOPPED), ("PREEMPTED|0:15", errors.STOPPED)):
        (cluster / "state").write_text(state + "\n")
        assert found.poll() == status
    assert places.Slurm(tmp_path, [], slots=10).adopt(job) is None


def test_without_a_cluster_the_missing_program_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (job,) = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0], tmp_path)
    with pytest.raises(config_lib.ConfigError, match="sbatch is not there"):
        places.Slurm(tmp_path, [], slots=1).start(job)


def test_a_run_that_was_stopped_and_has_saved_goes_on_without_limit(tmp_path):
    planned = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0], tmp_path)
    ended, _ = run(planned, Pretended(1, {"rime_tiny_seed0": 5}, errors.STOPPED), retries=0)
    assert ended


def test_a_run_that_was_refused_is_not_tried_again(tmp_path):
    planned = jobs.plan([f"{ALCHEMY}/rime.py:tiny"], [0, 1], tmp_path)
    place = Pretended(1, {"rime_tiny_seed0": 1}, status=errors.REFUSED)
    ended, said = run(planned, place, retries=5)
    assert not ended and "exit status 78" in said
    assert place.started == names(planned)


@pytest.mark.parametrize(("fails", "failure", "interrupted", "status"), [
    (0, 1, True, 75), (2, 1, False, 1), (2, errors.REFUSED, False, 78), (0, 1, False, 0)])
def test_the_status_is_that_of_a_run_that_ended_so(
    tmp_path, monkeypatch, capsys, fails, failure, interrupted, status
):
    class Interrupted(Pretended):
        def end(self, job):
            if interrupted:
                raise KeyboardInterrupt
            return super().end(job)

    place = Interrupted(1, {"rime_tiny_seed0": fails}, failure)
    monkeypatch.setattr(sweep, "_place", lambda _: place)
    monkeypatch.setattr(sweep, "_SAVE_S", 0.0)
    monkeypatch.setattr(sweep.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        sweep.main([f"{ALCHEMY}/rime.py:tiny", f"--out={tmp_path}"])
    assert end.value.code == status
    assert ("stopped" in capsys.readouterr().out) == interrupted


def test_a_local_run_that_is_told_to_stop_may_save_first(tmp_path):
    log = tmp_path / "log"
    process = places.Process(
        ["bash", "-c", "trap 'echo saved; exit 3' TERM\necho ready\nwhile :; do sleep .05; done"],
        log, dict(os.environ))
    until = time.monotonic() + 30
    while "ready" not in log.read_text().splitlines() and time.monotonic() < until:
        time.sleep(0.05)
    assert process.poll() is None
    assert process.stop() is None
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert process.poll() == 3 and log.read_text().rstrip().endswith("saved")


def test_slices_run_one_run_each_on_all_their_workers(tmp_path, monkeypatch):
    log = tmp_path / "calls"
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(f"#!/usr/bin/env bash\necho \"$@\" >>{log}\n")
    gcloud.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    planned = jobs.plan([f"{ALCHEMY}/rime.py:tiny", f"{ALCHEMY}/cod.py:tiny"], [0], tmp_path)
    place = places.Slices(["a"], "zone-1")
    for job in planned:  # The slice is free again when its run has ended.
        handle = place.start(job)
        while handle.poll() is None:
            time.sleep(0.01)
    calls = log.read_text().splitlines()
    assert [call.split(" --command")[0] for call in calls] == [
        "compute tpus tpu-vm ssh a --zone=zone-1 --worker=all"] * 2
    for job, call in zip(planned, calls, strict=True):
        assert f"run_dir={job.directory}" in call and "--coordinator auto" in call
