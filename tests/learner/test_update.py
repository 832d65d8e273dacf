"""The update gives the same numbers however the work is cut, and survives bad data."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax.learner import batch as batch_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import update as update_lib
from rime_jax.policy import qwen3

VOCABULARY = 24
POLICY = qwen3.Qwen3(qwen3.Qwen3Config(
    vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.5))
PARAMS = POLICY.init(jax.random.key(0))


def make_config(**changes):
    config = config_lib.default()
    values = dict(row_tokens=64, microbatch_rows=4, lr=1e-2, warmup_updates=5, weight_decay=0.1,
                  grad_clip=0.5) | changes
    for name, value in values.items():
        config.learner[name] = value
    return config


def learner(config, devices=1):
    """A learner without state can serve many tests; its programs are then compiled once."""
    return _learner(config_lib.dump(config), devices)


@functools.cache
def _learner(dumped, devices):
    config = config_lib.default()
    config.update(json.loads(dumped))
    mesh = mesh_lib.make_mesh(config.learner, jax.devices()[:devices])
    return update_lib.Learner(POLICY, config, mesh)


def sequences(n=24, seed=0, weight=lambda roles: (roles > 0).astype(np.float32)):
    """Conversations of both roles; each WRITE continues the ACT of its task."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n // 2):
        ids = rng.integers(1, VOCABULARY, rng.integers(12, 30)).astype(np.int32)
        cut = int(rng.integers(5, len(ids) - 3))
        for length, role, first in ((cut, 1, 2), (len(ids), 2, cut + 1)):
            roles = np.zeros(length, np.int8)
            roles[first:] = role
            # A few distinct values keep gradients far from cancelling to rounding error.
            advantage = np.float32(rng.choice([-1.0, 0.5, 2.0]))
            out.append(batch_lib.Trainable(
                (i, 0, 0), ids[:length], roles, weight(roles), (roles > 0) * advantage,
                np.where(roles > 0, -np.log(VOCABULARY) + rng.normal(size=length) * 0.3, 0)
                .astype(np.float32)))
    return out


def run(config, batches, devices=1, steps=1, reference=None):
    """Parameters and metrics after `steps` updates from PARAMS."""
    own = learner(config, devices)
    state = own.init({"policy": PARAMS})
    reference = None if reference is None else own.place(reference)
    for _ in range(steps):
        state, metrics = own.step(state, {"policy": batches}, reference)
    return jax.device_get(state.params["policy"]), jax.device_get(metrics)


def pack(config, items):
    return batch_lib.pack(items, config.learner.row_tokens, config.learner.microbatch_rows)


def assert_same(a, b, rtol=1e-5):
    """Loss, gradient norm and every parameter agree."""
    for name in ("policy/loss", "policy/grad_norm"):
        np.testing.assert_allclose(a[1][name], b[1][name], rtol=rtol)
    for x, y in zip(jax.tree.leaves(a[0]), jax.tree.leaves(b[0]), strict=False):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * np.abs(x).max())


@pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")
@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2), (1, 8, 1)])
def test_eight_devices_equal_one(mesh):
    one = make_config(microbatch_rows=8, row_tokens=32)
    batch = pack(one, sequences())
    data, fsdp, tensor = mesh
    many = make_config(microbatch_rows=8, row_tokens=32, mesh_data=data, mesh_fsdp=fsdp,
                       mesh_tensor=tensor)
    assert_same(run(one, [batch]), run(many, [batch], devices=8))


def test_one_micro_batch_equals_four():
    whole, parts = (make_config(microbatch_rows=r, row_tokens=32) for r in (24, 4))
    items = sequences()
    batches = [pack(c, items) for c in (whole, parts)]
    assert [int(b.n_micro) for b in batches] == [1, 4]
    assert_same(run(whole, batches[:1]), run(parts, batches[1:]))


def test_packed_equals_unpacked():
    packed, unpacked = make_config(), make_config(row_tokens=32)
    items = sequences()
    batch = pack(packed, items)
    assert int(batch.segments.max()) >= 3
    rows = [batch_lib.pack([s], 32, 1) for s in items]
    alone = jax.tree.map(
        lambda *x: np.concatenate([a[:1] for a in x]).reshape(-1, 4, 32) if x[0].ndim == 3
        else np.int32(len(items) // 4), *rows)
    assert_same(run(packed, [batch]), run(unpacked, [alone]))


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


def test_logits_in_chunks_change_nothing(monkeypatch):
    config = make_config()
    batch = pack(config, sequences())
    whole = run(config, [batch])
    monkeypatch.setattr(update_lib.loss_lib, "head_chunk", lambda *_: 16)
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
    with pytest.raises(ValueError, match="reference_params"):
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
