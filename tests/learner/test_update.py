"""The update does what the method says, and survives bad data."""

import dataclasses

import jax
import numpy as np
import pytest

from rime_jax.learner import batch as batch_lib
from rime_jax.learner import update as update_lib
from tests.learner.updating import (
    PARAMS,
    POLICY,
    assert_same,
    learner,
    make_config,
    pack,
    run,
    sequences,
)


@pytest.mark.parametrize("old", ["sampler", "learner"])
def test_merged_equals_unmerged(old):
    config = make_config(old_logprobs=old, kl_coef=1.0)
    items = sequences()
    merged = batch_lib.merge_prefixes(items)
    assert len(merged) == len(items) // 2
    reference = POLICY.init(jax.random.key(1))
    assert_same(run(config, [pack(config, items)], reference=reference),
                run(config, [pack(config, merged)], reference=reference))


def test_capacity_padding_changes_nothing():
    config = make_config()
    batch = pack(config, sequences())
    padded = jax.tree.map(lambda x: np.concatenate([x, x]) if x.ndim == 3 else x, batch)
    assert_same(run(config, [batch]), run(config, [padded]), rtol=0)


def test_logits_by_blocks_change_nothing(monkeypatch):
    config = make_config()
    batch = pack(config, sequences())
    whole = run(config, [batch])
    monkeypatch.setattr(update_lib.loss_lib, "head_block", lambda *_: 8)
    assert_same(whole, run(config, [batch]))


def test_sequence_weights_give_the_mean_of_means():
    config = make_config()
    items = sequences(4, weight=lambda roles: np.where(roles > 0, 1 / (roles > 0).sum(), 0)
                      .astype(np.float32))
    alone = [run(config, [pack(config, [s])])[1]["policy/loss"] for s in items]
    _, together = run(config, [pack(config, items)])
    np.testing.assert_allclose(together["policy/loss"], np.mean(alone), rtol=1e-5)


def test_logprobs_are_those_of_the_plain_forward_pass():
    config = make_config()
    item = sequences()[1]
    own = learner(config)
    state = own.init({"policy": PARAMS})
    got = np.asarray(own.logprobs(state.params["policy"], pack(config, [item])))[0, 0]
    ids = item.ids[None]
    hidden = POLICY.forward(PARAMS, ids, np.arange(len(item.ids))[None], np.ones_like(ids))
    log_p = np.asarray(jax.nn.log_softmax(POLICY.logits(PARAMS, hidden)))[0]
    want = [log_p[t - 1, item.ids[t]] for t in range(1, len(item.ids))]
    np.testing.assert_allclose(got[1:len(item.ids)], want, rtol=1e-5)


def test_old_log_probs_of_the_learner_make_the_first_ratio_one():
    config = make_config(old_logprobs="learner", kl_coef=1.0)
    _, metrics = run(config, [pack(config, sequences())], reference=PARAMS)
    np.testing.assert_allclose(metrics["policy/ratio_max"], 1, rtol=1e-6)
    np.testing.assert_allclose(metrics["policy/approx_kl"], 0, atol=1e-6)
    assert metrics["policy/logprob_gap"] > 0.01


def test_the_gap_to_the_sampler_is_that_before_the_first_update():
    config = make_config()
    items = sequences()
    batches = [pack(config, part) for part in (items[:12], items[12:])]
    _, first = run(config, batches[:1])
    _, both = run(config, batches)
    for name in ("policy/logprob_gap", "policy/logprob_gap_max"):
        np.testing.assert_allclose(both[name], first[name], rtol=1e-6)


def test_kl_pulls_towards_the_reference():
    items = [dataclasses.replace(s, advantages=0 * s.advantages) for s in sequences()]
    reference = POLICY.init(jax.random.key(1))
    config = make_config(kl_coef=1.0)
    found = [run(config, [pack(config, items)], steps=n, reference=reference)[1]["policy/kl_init"]
             for n in (1, 8)]
    assert 0 < found[1] < found[0]


def test_kl_without_a_reference_is_refused():
    config = make_config(kl_coef=1.0)
    with pytest.raises(ValueError, match="reference"):
        run(config, [pack(config, sequences())])


def test_positive_advantages_raise_the_log_probs_of_their_tokens():
    items = [dataclasses.replace(s, advantages=(s.roles > 0).astype(np.float32))
             for s in sequences()]
    config = make_config()
    own = learner(config)
    batch = pack(config, items)
    state = own.init({"policy": PARAMS})

    def mean(params):
        return (np.asarray(own.logprobs(params, batch)) * batch.weights).sum()

    before = mean(state.params["policy"])
    state, _ = own.step(state, {"policy": [batch]})
    assert mean(state.params["policy"]) > before


@pytest.mark.parametrize("poison", ["behaviour", "advantages"])
def test_a_non_finite_update_is_skipped_and_counted(poison):
    config = make_config()
    batch = pack(config, sequences())
    bad = batch.replace(**{poison: np.where(batch.weights > 0, np.nan, 0).astype(np.float32)})
    params, metrics = run(config, [bad])
    assert metrics["policy/skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(PARAMS))
    after = run(config, [bad, batch])
    assert after[1]["policy/skipped"] == 0.5
    jax.tree.map(np.testing.assert_array_equal, after[0], run(config, [batch])[0])


def test_a_batch_without_weight_changes_nothing():
    config = make_config()
    batch = pack(config, sequences())
    params, metrics = run(config, [batch.replace(weights=0 * batch.weights)])
    assert metrics["policy/skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(PARAMS))


def test_no_batch_changes_nothing():
    params, metrics = run(make_config(), [])
    assert metrics == {}
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(PARAMS))


def test_a_frozen_set_stays_and_has_no_optimiser_state():
    config = make_config()
    config.roles.write = "writer"
    own = learner(config)
    frozen = POLICY.init(jax.random.key(2))
    state = own.init({"policy": PARAMS, "writer": frozen})
    state, _ = own.step(state, {"policy": [pack(config, sequences())]})
    jax.tree.map(np.testing.assert_array_equal, state.params["writer"], frozen)
    assert set(state.opt_state) == {"policy"}
    assert int(state.updates["policy"]) == 1


def test_a_trained_set_without_parameters_is_refused():
    with pytest.raises(ValueError, match="roles.train"):
        learner(make_config()).init({"other": PARAMS})


def test_init_copies_what_updates_consume():
    config = make_config()
    run(config, [pack(config, sequences())])
    assert not any(x.is_deleted() for x in jax.tree.leaves(PARAMS))


def test_rows_that_cannot_be_shared_out_are_refused():
    with pytest.raises(ValueError, match="learner.microbatch_rows"):
        learner(make_config(microbatch_rows=3), devices=2)


@pytest.mark.parametrize("warmup, rates", [(0, [1.0, 1.0]), (2, [0.1, 0.55, 1.0, 1.0])])
def test_learning_rate_warms_up_from_a_tenth(warmup, rates):
    schedule = update_lib.learning_rate(make_config(lr=1.0, warmup_updates=warmup).learner)
    np.testing.assert_allclose([schedule(i) for i in range(len(rates))], rates, rtol=1e-6)


def test_equals_an_update_written_out():
    """Clipped surrogate, global norm and one AdamW step, without any of the learner's code."""
    config = make_config()
    items = sequences(2)
    got, metrics = run(config, [pack(config, items)])
    c = config.learner

    def loss(params):
        total = tokens = 0.0
        for s in items:
            ids = s.ids[None]
            hidden = POLICY.forward(params, ids, np.arange(len(s.ids))[None], np.ones_like(ids))
            log_p = jax.nn.log_softmax(POLICY.logits(params, hidden))[0]
            t = np.flatnonzero(s.roles)
            ratio = jax.numpy.exp(log_p[t - 1, s.ids[t]] - s.behaviour[t])
            clipped = jax.numpy.clip(ratio, 1 - c.clip_low, 1 + c.clip_high)
            a = s.advantages[t]
            total -= jax.numpy.minimum(ratio * a, clipped * a).sum()
            tokens += len(t)
        return total / tokens

    value, gradient = jax.jit(jax.value_and_grad(loss))(PARAMS)
    leaves, tree = jax.tree.flatten(jax.tree.map(np.float64, gradient))
    norm = np.sqrt(sum((g**2).sum() for g in leaves))
    np.testing.assert_allclose(metrics["policy/loss"], value, rtol=1e-5)
    np.testing.assert_allclose(metrics["policy/grad_norm"], norm, rtol=1e-5)
    scaled = jax.tree.unflatten(tree, [g * min(1, c.grad_clip / norm) for g in leaves])
    # After one step both moments, with their bias corrected, are the gradient and its square.
    want = jax.tree.map(
        lambda p, g: p - c.lr / 10 * (g / (np.sqrt(g**2) + 1e-8) + c.weight_decay * p),
        jax.device_get(PARAMS), scaled)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want)


def test_the_update_can_be_lowered_without_data():
    lowered = learner(make_config(kl_coef=1.0, old_logprobs="learner")).lower_update(2)
    assert "while" in lowered.as_text()
