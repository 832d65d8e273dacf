"""The warm start shows the policy what the loop will show it, and teaches it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import domains, parts, warm_start
from rime_jax.envs.alchemy import demonstrations
from rime_jax.policy import qwen3
from tests.scripted import CHAT, TOKENIZER, play, small_config, streams_of, warm_config, warm_model

HABITS = demonstrations.Habits(explore=0.7, slip=0.1, writer_keeps=0.5, writer_last=0.3)


def demonstrate(stream, config, seed):
    """A demonstration of each task, from the memory written after the one before."""
    rng, facts, shown = np.random.default_rng(seed), {}, []
    rules = domains.alchemy_rules(config.env)
    for task in stream.tasks:
        one, facts = demonstrations.demonstrate(
            task.payload["chemistry"], task.payload["trial"], rules, facts, HABITS, rng)
        shown.append(one)
    return shown


@pytest.mark.parametrize("seed", range(5))
def test_a_demonstration_is_token_by_token_what_the_loop_builds(seed):
    config = small_config()
    stream = streams_of(config, seed + 1)[seed]
    shown = demonstrate(stream, config, seed)

    def imitate(call):
        one = shown[call.position]
        return one.memory if call.role == "write" else one.turns[call.turn][0]

    (rollout,), _ = play(imitate, config=config, streams=[stream])
    memory = ""
    for one, record in zip(shown, rollout.tasks, strict=True):
        ids, own = warm_start.encode(CHAT, memory, one)
        assert record.write.ids.tolist() == ids
        act = np.zeros(len(ids), bool)
        act[: len(record.act.mask)] = record.act.mask
        assert (record.write.mask | act).tolist() == own
        memory = one.memory
        assert record.memory_after == memory and record.written.malformed is None


def test_batches_hold_whole_demonstrations_with_a_weight_for_every_predicted_token():
    config = warm_config()
    config.warm_start.steps = 3
    batches = list(warm_start.make_batches(config, CHAT))
    assert len(batches) >= 3
    for tokens, weight, own in batches[:3]:
        assert tokens.shape == weight.shape == own.shape and tokens.shape[0] == 32
        length = (tokens != TOKENIZER.pad_token_id).sum(1)
        inside = np.arange(tokens.shape[1]) < length[:, None]
        assert not weight[:, 0].any() and not weight[~inside].any()
        np.testing.assert_array_equal(
            weight[:, 1:], np.where(own, 1.0, 0.5)[:, 1:] * inside[:, 1:])


def test_a_demonstration_that_does_not_fit_names_the_option():
    config = warm_config()
    config.rollout.context_tokens = 32
    with pytest.raises(config_lib.ConfigError, match="rollout.context_tokens = 32.*raise it"):
        next(warm_start.make_batches(config, CHAT))


def loss(policy, params, batch):
    """Mean negative log-probability of the policy's own tokens."""
    tokens, _, own = batch
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden = policy.forward(params, tokens, positions, jnp.ones_like(tokens))
    logp = jax.nn.log_softmax(policy.logits(params, hidden[:, :-1]))
    chosen = np.take_along_axis(np.asarray(logp), tokens[:, 1:, None], 2)[..., 0]
    return -chosen[own[:, 1:]].mean()


def test_it_learns_and_its_model_can_be_trained_further(tmp_path):
    config = small_config(model__path=warm_model(), run_dir=str(tmp_path))
    built = parts.build(config)
    fresh = warm_config()
    fresh.seed = 99  # other demonstrations than those that were trained on
    batch = next(warm_start.make_batches(fresh, CHAT))
    before = built.policy.init(jax.random.key(0))
    after = loss(built.policy, built.initial_params(), batch)
    assert after < loss(built.policy, before, batch) - 1
    assert after < 0.6 * np.log(len(TOKENIZER))  # the uniform guess


def test_five_updates_already_lower_the_loss():
    config = warm_config()
    config.warm_start.steps = 5
    policy, params, tokenizer = warm_start.train(config)
    assert policy.config == warm_start.model_config(config.warm_start, len(tokenizer))
    config.seed = 1
    batch = next(warm_start.make_batches(config, CHAT))
    initial = qwen3.Qwen3(policy.config).init(jax.random.key(0))
    assert loss(policy, params, batch) < loss(policy, initial, batch)


def test_an_earlier_warm_start_is_taught_further():
    config = warm_config()
    config.warm_start.steps, config.seed = 5, 7
    batch = next(warm_start.make_batches(config, CHAT))
    config.warm_start.initial = warm_model()
    policy, params, _ = warm_start.train(config)
    assert loss(policy, params, batch) < 0.6 * np.log(len(TOKENIZER))  # a fresh one is far above
    config.warm_start.initial = "tiny-bytes-v1"
    with pytest.raises(config_lib.ConfigError, match="warm_start.initial = tiny-bytes-v1"):
        warm_start.train(config)
