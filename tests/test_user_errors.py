"""What a user can get wrong, and what the programs say."""

import itertools

import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import experiment, parts, warm_start
from rime_jax.evaluation import heldout
from rime_jax.policy import chat
from rime_jax.tracking import run_dir
from tests import scripted


@pytest.mark.parametrize("text, value", [(".5", 0.5), ("5.", 5.0), ("1_0", 10.0), ("1e-2", 0.01)])
def test_a_float_may_be_written_in_any_way_python_reads(text, value):
    config = config_lib.default()
    config_lib.override(config, {"reward.exploration": text})
    assert config.reward.exploration == value


def test_the_remedy_for_a_tuple_is_what_set_reads():
    config = config_lib.default()
    config_lib.override(config, {"env.edges": config_lib.as_text((12, 10))})
    assert config.env.edges == (12, 10)


def test_several_assignments_may_follow_one_set(tmp_path):
    import argparse

    parser = argparse.ArgumentParser()
    experiment.add_arguments(parser)
    given = parser.parse_args(["--config", "x", "--set", "a=1", "b=2", "--set", "c=3"])
    assert given.set == ["a=1", "b=2", "c=3"]


def test_a_small_policy_is_refused_for_the_full_text_form():
    config = config_lib.default()
    config.env.form = "full"
    with pytest.raises(config_lib.ConfigError, match="model.path.*env.form = 'full'.*'compact'"):
        parts.build(config)


def test_a_context_that_holds_no_reply_is_refused():
    config = config_lib.default()
    config.rollout.context_tokens = 32
    with pytest.raises(config_lib.ConfigError, match="rollout.context_tokens = 32.*raise it"):
        parts.build(config)


def test_more_evaluation_streams_than_held_out_chemistries_are_refused():
    config = config_lib.default()
    config.eval.streams = 65
    with pytest.raises(config_lib.ConfigError, match="eval.streams = 65, but only 64"):
        heldout.held_out_streams(parts.build(config))


def test_demonstrations_end_a_trial_in_which_no_stone_is_left():
    config = experiment.read("experiments/alchemy/benchmark_rules.py")
    tokens = chat.ChatTokens(scripted.TOKENIZER)
    rng = np.random.default_rng(0)
    for clean in (True, False):
        made = warm_start.demonstrated_sequences(config, tokens, clean, rng)
        for ids, own in itertools.islice(made, 200):
            assert len(ids) == len(own) <= config.rollout.context_tokens


def test_a_moved_run_is_continued_where_it_is(tmp_path):
    config = config_lib.default()
    moved = tmp_path / "moved"
    (moved / "checkpoints").mkdir(parents=True)
    assert run_dir.path_of(config, str(moved / "config.json")) == moved
    assert run_dir.path_of(config, "experiments/alchemy/rime.py").name == "rime"
    config.run_dir = "elsewhere"
    assert run_dir.path_of(config, str(moved / "config.json")).name == "elsewhere"


@pytest.mark.parametrize("name, text, message", [
    ("learner.lr", "inf", "no finite number"),
    ("learner.b2", "1", "below 1"),
    ("rollout.temperature", "0", "siblings would be the same"),
    ("roles.train", "policy,policy", "twice"),
    ("roles.act", "../../escape", "names a directory"),
    ("name", "..", "names a directory"),
    ("run_dir", "~/runs", "no shell has put"),
    ("judge.kind", "none", "reward.exploration = 0"),
])
def test_a_value_that_would_train_nothing_or_harm_is_refused(name, text, message):
    config = config_lib.default()
    with pytest.raises(config_lib.ConfigError, match=message):
        config_lib.override(config, {name: text})
        config_lib.validate(config)


def test_a_game_that_cannot_be_dealt_is_refused_before_anything_is_written():
    config = config_lib.default()
    config.env.max_steps, config.env.min_oracle = 1, 30
    with pytest.raises(config_lib.ConfigError, match="min_oracle"):
        parts.build(config)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path):
    import jax

    from rime_jax.policy import qwen3, weights

    small = qwen3.Qwen3(qwen3.Qwen3Config(20, 16, 16, 1, 2, 1, 8))
    weights.save(tmp_path / "m", small, small.init(jax.random.key(0)), scripted.TOKENIZER)
    config = config_lib.default()
    config.model.path = str(tmp_path / "m")
    with pytest.raises(weights.ModelError, match="35 ids.*20 embeddings"):
        parts.build(config)


def test_texts_of_the_policy_stay_inert_in_a_readers_browser():
    from rime_jax.tracking import texts

    for end in ("\n", "\r", "\x0b", "\u2028", "\r\n"):
        assert texts._quote(f"a{end}{end}<img src=x>") == "`a ⏎  ⏎ <img src=x>`"
