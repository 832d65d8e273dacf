"""Trainings whose judge is a server: the same numbers as with the embedded one, and none lost."""

import os
import signal
import subprocess
import sys

import pytest

from rime_jax import config as config_lib
from rime_jax import errors, judges, train
from rime_jax.judge.chat import Failure
from rime_jax.tracking import metrics, run_dir
from tests import scripted
from tests.judge.stub import stub_in_thread

STEPS = 3
# See tests/judge/stub.py; taken in turn.
BEHAVIOURS = ("fine", "chatty", "error_500", "out_of_range", "closes", "fine", "no_http", "busy",
              "fine", "half", "drips", "other_keys")


def tiny(directory, **values):
    return scripted.small_config(**{
        "model__path": scripted.warm_model(), "run_dir": str(directory), "steps": STEPS,
        "learner__row_tokens": 128, "sampler__slots": 24, "sampler__prefill_chunks": (16,),
        "eval__every": 0, "eval__streams": 1, "eval__rollouts": 1, "eval__bootstrap": 100,
        "track__kl_every": 0, "track__text_every": 0, "track__samples_every": 0,
        "track__checkpoint_every": STEPS, "learner__warmup_updates": 2, **values})


def trained(config):
    """The lines of a whole training."""
    directory = run_dir.RunDir(config.run_dir)
    assert train.train(config, directory)
    return metrics.read(directory.metrics)


def numbers(lines):
    """Without the clock's, and those that only a served judge has."""
    return [{k: v for k, v in line.items() if not k.startswith(("time/", "judge/"))}
            for line in lines]


@pytest.fixture
def served(tmp_path):
    """The line in which a lexical judge server says that it is ready."""
    config = tmp_path / "domain.json"
    config.write_text(config_lib.dump(scripted.small_config()))
    process = subprocess.Popen(
        [sys.executable, "-m", "rime_jax.judge.serve", "--model=lexical", f"--config={config}",
         "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line.startswith("ready: "), process.communicate()
    yield dict(part.split("=") for part in line.split()[1:])
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_judge_in_another_process_gives_the_scores_of_the_embedded_one(served, tmp_path):
    config = tiny(tmp_path / "served", judge__kind="server", steps=2,
                  judge__urls=(served["judge.urls"],), judge__model=served["judge.model"])
    lines = trained(config)
    assert numbers(lines) == numbers(trained(tiny(tmp_path / "embedded", steps=2)))
    tasks = config.rollout.streams_per_step * config.rollout.group_size * config.env.trials
    for line in lines:
        assert line["judge/verdicts/answered"] + line["judge/verdicts/cached"] == tasks
        assert line["exploration/score"] > 0 and line["failures/judge_unavailable"] == 0
    assert any((tmp_path / "served" / "judge_cache").rglob("*.json"))


def test_a_judge_that_fails_in_every_way_costs_no_step(tmp_path):
    asked = 0

    def behave(_):
        nonlocal asked
        asked += 1
        return BEHAVIOURS[asked % len(BEHAVIOURS)]

    with stub_in_thread(behave) as stub:
        config = tiny(tmp_path / "run", judge__kind="server", judge__urls=(stub.url,),
                      judge__model="a-judge", judge__timeout_s=0.5, judge__retries=0)
        lines = trained(config)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    tasks = config.rollout.streams_per_step * config.rollout.group_size * config.env.trials
    for line in lines:
        verdicts = {k: v for k, v in line.items() if k.startswith("judge/verdicts/")}
        failed = sum(v for k, v in verdicts.items() if k.rpartition("/")[2] in set(Failure))
        assert sum(verdicts.values()) == tasks
        assert failed == line["failures/judge_unavailable"]
        # Whatever the judge does, every conversation is there, and trained.
        assert line["failures/sampler_error"] == line["failures/env_crash"] == 0
        assert line["learner/policy/skipped"] == 0 and line["learner/policy/grad_norm"] > 0
    assert sum(line["failures/judge_unavailable"] for line in lines) > 0


def test_a_training_without_its_judge_does_not_start(tmp_path):
    with stub_in_thread(lambda _: "fine") as stub:
        gone = stub.url
    config = tiny(tmp_path / "run", judge__kind="server", judge__urls=(gone,), judge__model="m")
    with pytest.raises(errors.TransientError, match="no server can be asked: http.*judge_server"):
        train.train(config, run_dir.RunDir(config.run_dir))
    assert not (tmp_path / "run").exists()


def test_a_server_of_another_model_is_named(served):
    config = scripted.small_config(
        judge__kind="server", judge__urls=(served["judge.urls"],), judge__model="gpt")
    with pytest.raises(errors.TransientError, match="serves lexical, not gpt"):
        judges.check_serves(config)


def test_a_base_without_its_v1_does_not_start_a_training(served):
    config = scripted.small_config(
        judge__kind="server", judge__urls=(served["judge.urls"].removesuffix("/v1"),),
        judge__model="lexical")
    with pytest.raises(errors.TransientError, match="HTTP 404 for .*ends in /v1"):
        judges.check_serves(config)


def test_a_server_without_a_list_of_models_is_asked_all_the_same():
    with stub_in_thread(lambda _: "no_text") as stub:
        judges.check_serves(scripted.small_config(
            judge__kind="server", judge__urls=(stub.url,), judge__model="m"))


@pytest.mark.parametrize("values, named", [
    ({"judge__model": ""}, "judge.model"),
    ({"judge__urls": ("127.0.0.1:8100",)}, "judge.urls"),
    ({"judge__urls": ("http://a/v1?key=b",)}, "judge.urls"),
    ({"judge__concurrency": 0}, "judge.concurrency"),
])
def test_a_wrong_option_is_named(values, named):
    with pytest.raises(config_lib.ConfigError, match=named):
        scripted.small_config(**({"judge__kind": "server", "judge__model": "m"} | values))
