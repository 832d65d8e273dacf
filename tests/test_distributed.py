"""Real processes on one machine against one process: the same run, whoever plays what."""

import argparse
import asyncio
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from rime_jax import config as config_lib
from rime_jax import distributed, errors
from rime_jax.tracking import metrics, run_dir
from tests import scripted

ROOT = pathlib.Path(__file__).parents[1]
STEPS = 3

# What `python -m rime_jax.train` does, with a death noticed sooner.
PROGRAM = """
import sys
from rime_jax import config, distributed, experiment, train
from rime_jax.tracking import run_dir
path, coordinator, count, index = sys.argv[1:]
with experiment.clean_errors():
    loaded = config.load(path)
    processes = distributed.start(coordinator, int(count), int(index), heartbeat_s=10)
    with distributed.together(processes):
        print(train.train(loaded, run_dir.RunDir(loaded.run_dir), processes))
"""


def tiny(directory, **values):
    """A run of seconds. Each process decodes as many sessions on its one device as one alone does,
    so that all do the same arithmetic and sample the same tokens."""
    return scripted.small_config(**{
        "model__path": scripted.warm_model(), "run_dir": str(directory), "steps": STEPS,
        "rollout__streams_per_step": 3, "rollout__group_size": 4, "env__trials": 3,
        "learner__row_tokens": 128, "learner__microbatch_rows": 8,
        "learner__lr": 1e-3, "learner__warmup_updates": 2, "learner__kl_coef": 0.01,
        "sampler__slots": 12, "sampler__prefill_chunks": (16,),
        "eval__every": 2, "eval__streams": 3, "eval__rollouts": 1, "eval__bootstrap": 100,
        "track__checkpoint_every": 1, "track__samples_every": 2, "track__text_every": 2,
        "track__kl_every": 2, **values})


def environment(devices):
    flags = (f"--xla_force_host_platform_device_count={devices} "
             "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false")
    # Many small programs, the same in every run: all are worth keeping.
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def start(configs, tmp_path, devices=1):
    """One process for each configuration (usually all the same); they know each other."""
    coordinator, running = f"localhost:{free_port()}", []
    for i, config in enumerate(configs):
        file = tmp_path / f"{pathlib.Path(config.run_dir).name}.{i}.json"
        file.write_text(config_lib.dump(config))
        running.append(subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(file), coordinator, str(len(configs)), str(i)],
            cwd=ROOT, env=environment(devices), text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE))
    return running


def finish(running):
    """(exit code, stdout, stderr) of each; none is left behind."""
    try:
        texts = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    return [(p.returncode, out, err) for p, (out, err) in zip(running, texts, strict=True)]


def run(config, tmp_path, count, devices=1):
    for code, out, err in finish(start([config] * count, tmp_path, devices)):
        assert code == 0 and out.split()[-1] == "True", f"{out}\n{err}"
    return run_dir.RunDir(config.run_dir)


def wait_for_step(directory, step, running):
    deadline = time.monotonic() + 300
    while not any(line["step"] >= step for line in metrics.read(directory / "metrics.jsonl")):
        assert all(p.poll() is None for p in running), finish(running)
        assert time.monotonic() < deadline, f"step {step} did not come"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same run by one process, by the number of its streams."""
    made = {}

    def get(streams):
        if streams not in made:
            path = tmp_path_factory.mktemp("alone")
            config = tiny(path / "run", rollout__streams_per_step=streams)
            made[streams] = run(config, path, 1)
        return made[streams]

    return get


def assert_same_run(directory, other):
    """Bitwise in all that is counted or played; sums over rows are added up in another order.

    That order is seen in the last digits of float32. Differences of nearly equal numbers (the
    sampler's and the learner's log-probabilities, small KLs and losses) keep it as an absolute
    error.
    """
    own, want = metrics.read(directory.metrics), metrics.read(other.metrics)
    assert [line["step"] for line in own] == [line["step"] for line in want]
    for a, b in zip(own, want, strict=True):
        # What a sampler had to compute depends on who shares it.
        shown = {k for k in b if not k.startswith(("time/", "sampler/"))}
        assert {k for k in a if not k.startswith(("time/", "sampler/"))} == shown
        for name in shown:
            if not name.startswith("learner/"):
                assert a[name] == b[name], (b["step"], name)
            elif b[name] is not None:
                assert a[name] == pytest.approx(b[name], rel=1e-5, abs=5e-6), (b["step"], name)
    assert directory.sample_steps() == other.sample_steps()
    for step in other.sample_steps():
        assert directory.read_samples(step) == other.read_samples(step)
    tables = [json.loads((d.eval / "final.json").read_text()) for d in (directory, other)]
    assert tables[0] == tables[1]
    mine, theirs = (load_file(d.path / "model" / "policy" / "model.safetensors")
                    for d in (directory, other))
    assert mine.keys() == theirs.keys()
    for name in theirs:
        change = np.linalg.norm(mine[name] - theirs[name]) / np.linalg.norm(theirs[name])
        assert change < 1e-5, name


@pytest.mark.parametrize(("count", "devices", "streams", "values"), [
    (2, 1, 3, {}),
    (4, 1, 3, {"learner__mesh_fsdp": 2, "learner__mesh_tensor": 2}),
    (2, 2, 1, {"learner__mesh_fsdp": 2, "sampler__slots": 24}),
], ids=["uneven groups", "one of four plays nothing", "one of two plays nothing"])
def test_several_processes_make_the_run_of_one(alone, tmp_path, count, devices, streams, values):
    config = tiny(tmp_path / "run", rollout__streams_per_step=streams, **values)
    assert_same_run(run(config, tmp_path, count, devices), alone(streams))


def test_a_killed_process_ends_the_other_and_one_process_can_go_on(alone, tmp_path):
    config = tiny(tmp_path / "run")
    running = start([config] * 2, tmp_path)
    wait_for_step(tmp_path / "run", 1, running)
    running[1].send_signal(signal.SIGKILL)
    (code, _, err), (killed, *_) = finish(running)
    assert killed == -signal.SIGKILL
    assert code != 0 and re.search("another task died|lost another process", err), err
    assert_same_run(run(config, tmp_path, 1), alone(3))


def test_sigterm_to_one_process_stops_all_at_the_same_step(alone, tmp_path):
    config = tiny(tmp_path / "run", track__checkpoint_every=100)
    running = start([config] * 2, tmp_path)
    wait_for_step(tmp_path / "run", 1, running)
    running[1].send_signal(signal.SIGTERM)
    ended = finish(running)
    assert [code for code, *_ in ended] == [0, 0], ended
    assert [out.split()[-1] for _, out, _ in ended] == ["False", "False"]
    (saved,) = (int(p.name) for p in (tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    assert 1 <= saved <= STEPS and f"step {saved} is saved" in ended[0][1]
    assert_same_run(run(config, tmp_path, 2), alone(3))


# ---------------------------------------------------------------------- what ends a start


def test_processes_with_different_options_refuse_to_start(tmp_path):
    configs = [tiny(tmp_path / "run"), tiny(tmp_path / "run", learner__lr=2e-3)]
    for code, _, err in finish(start(configs, tmp_path)):
        assert code == errors.REFUSED
        assert "process 1 has learner.lr = 0.002, process 0 has 0.001; start all" in err, err
    assert not (tmp_path / "run").exists()


def test_the_others_end_as_one_does_whose_input_is_refused(tmp_path):
    config = tiny(tmp_path / "run")
    run_dir.RunDir(config.run_dir).create_or_resume(config, True)
    config.learner.lr = 2e-3
    ended = finish(start([config] * 2, tmp_path))
    assert [code for code, *_ in ended] == [errors.REFUSED] * 2
    assert all("holds a run with learner.lr = 0.001, not 0.002" in err for *_, err in ended)


def test_the_failure_of_one_process_is_told_by_the_others(tmp_path):
    config = tiny(tmp_path / "run")
    directory = run_dir.RunDir(config.run_dir)
    with directory.lock():
        (first, _, told), (second, _, passed_on) = finish(start([config] * 2, tmp_path))
    assert (first, second) == (1, 1)
    assert "another process trains in" in told
    assert "process 0 ended: another process trains in" in passed_on


@pytest.mark.parametrize(("arguments", "told"), [
    (["--coordinator", "host0"], "go together"),
    (["--processes", "2", "--process", "0"], "go together"),
    (["--process", "1"], "go together"),
    (["--coordinator", "host0:65536", "--processes", "2", "--process", "0"], "write auto, or HOST"),
    (["--coordinator", "auto", "--processes", "2", "--process", "0"], "go together"),
    (["--coordinator", "host0", "--processes", "2", "--process", "0"], "HOST:PORT of process 0"),
    (["--coordinator", "h:1", "--processes", "2", "--process", "2"], "numbers go from 0 to 1"),
])
def test_wrong_numbers_name_the_arguments(arguments, told):
    parser = argparse.ArgumentParser()
    distributed.add_arguments(parser)
    with pytest.raises(distributed.ProcessError, match=told):
        with distributed.session(parser.parse_args(arguments)):
            pass


def test_an_address_without_numbers_is_no_cluster():
    with pytest.raises(distributed.ProcessError, match="--processes N and --process I too"):
        distributed.start("host0:1")


def test_a_coordinator_that_is_not_there_is_named():
    coordinator = f"localhost:{free_port()}"
    with pytest.raises(distributed.ProcessLost, match=f"{coordinator} cannot be reached"):
        distributed.start(coordinator, 2, 1, wait_s=0)


def test_auto_without_a_cluster_says_what_to_write(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(config_lib.dump(tiny(tmp_path / "run")))
    clusters = ("SLURM", "OMPI", "KUBERNETES", "TPU", "JAX_COORD")
    done = subprocess.run(
        [sys.executable, "-m", "rime_jax.train", f"--config={file}", "--coordinator", "auto"],
        cwd=ROOT, text=True, capture_output=True,
        env={k: v for k, v in environment(1).items() if not k.startswith(clusters)})
    assert done.returncode == errors.REFUSED
    assert re.search("error: --coordinator auto: jax finds no cluster.*HOST:PORT", done.stderr)


# ---------------------------------------------------------------------- a process that is alone


@given(st.integers(0, 30), st.integers(1, 9))
def test_every_thing_falls_to_one_process(n, count):
    dealt = [list(distributed.Processes(i, count).own(n)) for i in range(count)]
    assert sorted(sum(dealt, [])) == list(range(n))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_work_ends_at_once_when_it_is_told_to():
    async def check():
        stop = distributed.Stop(distributed.ALONE)
        assert await stop.run(asyncio.sleep(0, 7)) == 7
        asyncio.get_running_loop().call_soon(stop.ask)
        with pytest.raises(distributed.Stopped):
            await stop.run(asyncio.sleep(1000))
        # And what begins after that does not begin.
        with pytest.raises(distributed.Stopped):
            await stop.run(asyncio.sleep(1000))

    asyncio.run(check())


def test_an_error_in_the_work_is_no_stop():
    async def fail():
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        asyncio.run(distributed.Stop(distributed.ALONE).run(fail()))
