"""The examples of the documentation, run as a reader would."""

import pathlib

import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import domains, experiment, train
from rime_jax.tracking import metrics, run_dir

ROOT = pathlib.Path(__file__).parents[1]
LOCKBOX = str(ROOT / "examples" / "lockbox.py")


def test_a_domain_of_ones_own_fits_a_hundred_lines_and_trains(tmp_path):
    assert len(pathlib.Path(LOCKBOX).read_text().splitlines()) <= 100
    config = experiment.read(LOCKBOX, [
        "steps=3", f"run_dir={tmp_path / 'run'}", "eval.streams=2", "eval.rollouts=1",
        "rollout.group_size=2", "sampler.slots=8", "eval.bootstrap=100"])
    directory = run_dir.RunDir(config.run_dir)
    assert train.train(config, directory)
    lines = metrics.read(directory.metrics)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all(1 <= line["env/tries"] <= 5 for line in lines[1:])
    assert "examples.lockbox:make, 5 turns" in (directory.eval / "final.md").read_text()


def test_the_digit_is_that_of_the_whole_stream_and_pays_by_the_tries():
    config = experiment.read(LOCKBOX)
    domain = domains.make(config)
    stream = domain.make_stream("train")(0, np.random.default_rng(3))
    env = domain.make_env()
    for task in stream.tasks:
        env.reset(task)
        wrong = (stream.info["digit"] + 1) % 10
        assert not env.step(f"I try {wrong}").done
        assert env.step("hm").format_error == "no_digit"
        assert env.step(f"{stream.info['digit']}").done
        assert env.outcome().reward == pytest.approx(1 - 2 / 5)


@pytest.mark.parametrize(("name", "told"), [
    ("examples.absent:make", "No module named 'examples.absent'"),
    ("examples.lockbox:absent", "has no attribute 'absent'"),
])
def test_a_domain_that_cannot_be_imported_is_named_with_the_remedy(name, told):
    config = config_lib.default()
    config.env.domain = name
    config_lib.validate(config)
    with pytest.raises(config_lib.ConfigError, match=f"{told}.*PYTHONPATH"):
        domains.make(config)


@pytest.mark.parametrize("name", ["alchemie", "os.system", "a b:c", "m:f()", ""])
def test_a_domain_is_a_name_that_is_known_or_a_function_of_a_module(name):
    config = config_lib.default()
    config.env.domain = name
    with pytest.raises(config_lib.ConfigError, match="neither alchemy nor codebase nor MODULE"):
        config_lib.validate(config)
