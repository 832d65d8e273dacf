"""Runs that start from another run's checkpoint: which set gets what, and what is refused."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import parts, starting_point, train
from rime_jax.policy import qwen3, weights
from rime_jax.tracking import checkpoint, metrics, run_dir
from tests import scripted

TWO_SETS = {"roles__act": "a", "roles__write": "b", "roles__train": ("a", "b"),
            "reward__writer": "format"}


def tiny(directory, **values):
    return scripted.small_config(**{
        "model__path": scripted.warm_model(), "run_dir": str(directory), "steps": 2,
        "learner__row_tokens": 128, "learner__lr": 1e-3, "learner__warmup_updates": 0,
        "sampler__slots": 24, "sampler__prefill_chunks": (16,), "eval__every": 0,
        "eval__streams": 1, "eval__rollouts": 1, "eval__bootstrap": 100,
        "track__checkpoint_every": 1, "track__kl_every": 1, **values})


def run(config):
    directory = run_dir.RunDir(config.run_dir)
    assert train.train(config, directory)
    return directory


def starting_sets(config):
    built = parts.build(config)
    return starting_point.sets(built, train.make_learner(built).params_at)


def saved(config, step):
    """The parameter sets of a checkpoint as numpy, read without the code under test."""
    built = parts.build(config)
    learner = train.make_learner(built)
    wanted = learner.start(built.initial_sets(learner.params_at))
    path = run_dir.RunDir(config.run_dir).checkpoints
    state, _ = checkpoint.Checkpoints(path, 1, read_only=True).restore(step, wanted)
    return jax.device_get(state.params)


def assert_equal(tree, other):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(tree), other)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A run with one set, and its configuration."""
    config = tiny(tmp_path_factory.mktemp("runs") / "shared", track__checkpoint_keep=5)
    return run(config), config


@pytest.fixture(scope="module")
def apart(tmp_path_factory, shared):
    """A run with two sets that was branched off it."""
    config = tiny(tmp_path_factory.mktemp("runs") / "apart",
                  model__branch_from=f"{shared[0].checkpoints}/1", **TWO_SETS)
    return run(config), config


def test_a_shared_set_becomes_two_sets_that_do_not_share_buffers(shared, tmp_path):
    directory, config = shared
    found = starting_sets(tiny(
        tmp_path / "x", model__branch_from=f"{directory.checkpoints}/2", **TWO_SETS))
    want = saved(config, 2)["policy"]
    assert set(found) == {"a", "b"}
    assert_equal(found["a"], want)
    assert_equal(found["b"], want)
    pointers = [{leaf.addressable_data(0).unsafe_buffer_pointer() for leaf in jax.tree.leaves(t)}
                for t in found.values()]
    assert not pointers[0] & pointers[1]


def test_each_set_gets_what_played_its_role(apart, tmp_path):
    directory, config = apart
    sets = saved(config, 2)
    # The names need not be the same, and here they are exchanged.
    found = starting_sets(tiny(
        tmp_path / "x", model__branch_from=f"{directory.checkpoints}/2",
        **{**TWO_SETS, "roles__act": "b", "roles__write": "a"}))
    assert_equal(found["b"], sets["a"])
    assert_equal(found["a"], sets["b"])


def test_a_branched_run_starts_at_its_branch_point_and_records_it(shared, apart):
    directory, config = apart
    assert json.loads(directory.config.read_text())["model"]["branch_from"].endswith("/1")
    table = json.loads((directory.eval / "final.json").read_text())
    assert set(table["policies"]) == {"branch point", "step 2"}
    # The optimiser starts anew, and the KL is that to the initial policy, which is behind.
    assert metrics.read(directory.metrics)[0]["learner/a/kl_to_initial"] > 1e-7
    assert metrics.read(shared[0].metrics)[0]["learner/policy/kl_to_initial"] < 1e-9


def test_a_frozen_writer_stays_at_the_branch_point(shared, tmp_path):
    directory, config = shared
    branched = tiny(tmp_path / "frozen", model__branch_from=f"{directory.checkpoints}/2",
                    **{**TWO_SETS, "roles__train": ("a",)})
    run(branched)
    after, before = saved(branched, 2), saved(config, 2)["policy"]
    assert_equal(after["b"], before)
    assert not np.array_equal(after["a"]["embed"], before["embed"])


def test_a_branched_run_continues_from_its_own_checkpoint(shared, tmp_path):
    directory, _ = shared
    values = {"model__branch_from": f"{directory.checkpoints}/1"}
    whole = tiny(tmp_path / "whole", **values)
    run(whole)
    run(tiny(tmp_path / "parts", steps=1, **values))
    again = tiny(tmp_path / "parts", **values)
    run(again)
    assert_equal(saved(again, 2), saved(whole, 2))


@pytest.mark.parametrize(("branch", "told"), [
    ("nowhere/checkpoints/1", r"branch_from = 'nowhere/checkpoints/1'.*no config.json.*STEP"),
    ("{run}", r"no checkpoint; .* has those of steps \[1, 2\]: write e.g. .*checkpoints/2"),
    ("{run}/checkpoints/7", r"no checkpoint; .* has those of steps \[1, 2\]"),
])
def test_a_branch_point_that_is_not_there_is_refused_with_those_that_are(
        shared, tmp_path, branch, told):
    config = tiny(tmp_path / "x", model__branch_from=branch.format(run=shared[0].path))
    with pytest.raises(config_lib.ConfigError, match=told):
        train.train(config, run_dir.RunDir(config.run_dir))
    assert not (tmp_path / "x").exists()


def test_two_sets_do_not_become_one(apart, tmp_path):
    config = tiny(tmp_path / "x", model__branch_from=f"{apart[0].checkpoints}/2")
    with pytest.raises(config_lib.ConfigError, match="two parameter sets .'a' acts, 'b' writes"):
        train.train(config, run_dir.RunDir(config.run_dir))


def test_a_branch_point_of_another_model_is_refused(shared, tmp_path):
    sizes = weights.make_policy(pathlib.Path(scripted.warm_model()), "float32", "none").config
    other = qwen3.Qwen3(dataclasses.replace(sizes, intermediate_size=48))
    weights.save(tmp_path / "model", other, other.init(jax.random.key(0)), scripted.TOKENIZER)
    config = tiny(tmp_path / "x", model__path=str(tmp_path / "model"),
                  model__branch_from=f"{shared[0].checkpoints}/2")
    with pytest.raises(checkpoint.CheckpointError, match="another model.*layers"):
        train.train(config, run_dir.RunDir(config.run_dir))
    assert not (tmp_path / "x").exists()
