"""The loss against plain numpy, one token at a time."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax.learner import loss as loss_lib

R, L, V, D = 3, 12, 7, 5


def learner_config(**changes):
    config = config_lib.default().learner
    for name, value in changes.items():
        config[name] = value
    return config


@pytest.fixture
def micro():
    rng = np.random.default_rng(0)
    roles = rng.integers(0, 3, (R, L)).astype(np.int8)
    return types.SimpleNamespace(
        roles=roles,
        weights=np.where(roles > 0, rng.random((R, L)) + 0.1, 0).astype(np.float32),
        advantages=rng.normal(size=(R, L)).astype(np.float32),
        behaviour=(-rng.random((R, L))).astype(np.float32),
    )


def logprobs_near(x, seed, spread=0.5):
    noise = np.random.default_rng(seed).normal(size=x.shape) * spread
    return (x + noise).astype(np.float32)


def page_token(logp, old, behaviour, reference, advantage, c):
    ratio = np.exp(logp - old)
    clipped = min(max(ratio, 1 - c.clip_low), 1 + c.clip_high)
    loss = -min(ratio * advantage, clipped * advantage)
    if c.old_logprobs == "learner":
        loss *= min(np.exp(old - behaviour), c.importance_cap)
    if reference is not None:
        d = logp - reference
        loss += c.kl_coef * {"k1": d, "k2": d * d / 2, "k3": np.exp(-d) - 1 + d}[c.kl_estimator]
    return loss


@pytest.mark.parametrize("old_from", ["sampler", "learner"])
@pytest.mark.parametrize("estimator", [None, "k1", "k2", "k3"])
def test_objective_equals_the_page(micro, old_from, estimator):
    c = learner_config(old_logprobs=old_from, kl_coef=0.3, kl_estimator=estimator or "k3",
                       importance_cap=1.2)
    logp = logprobs_near(micro.behaviour, 1)
    old = logprobs_near(micro.behaviour, 2) if old_from == "learner" else None
    reference = logprobs_near(micro.behaviour, 3) if estimator else None
    got, terms = loss_lib.objective(logp, -logp, micro, old, reference, c)
    want = sum(
        float(micro.weights[i]) * page_token(
            logp[i], micro.behaviour[i] if old is None else old[i], micro.behaviour[i],
            None if reference is None else reference[i], micro.advantages[i], c)
        for i in np.ndindex(R, L) if micro.weights[i] > 0)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(terms.pairs["loss"], (want, micro.weights.sum()), rtol=1e-5)
    assert ("kl_init" in terms.pairs) == (estimator is not None)


def test_metrics_are_means_over_trained_tokens_of_each_role(micro):
    c = learner_config()
    logp = logprobs_near(micro.behaviour, 1)
    entropy = np.random.default_rng(4).random((R, L)).astype(np.float32)
    _, terms = loss_lib.objective(logp, entropy, micro, None, None, c)
    mean = {name: float(s / n) for name, (s, n) in terms.pairs.items()}
    ratio = np.exp(logp - micro.behaviour)
    trained = micro.roles > 0
    np.testing.assert_allclose(mean["entropy"], entropy[trained].mean(), rtol=1e-5)
    np.testing.assert_allclose(mean["entropy_act"], entropy[micro.roles == 1].mean(), rtol=1e-5)
    np.testing.assert_allclose(mean["entropy_write"], entropy[micro.roles == 2].mean(), rtol=1e-5)
    np.testing.assert_allclose(mean["clip_low"], ((ratio < .8) & (micro.advantages < 0))[trained]
                               .mean(), rtol=1e-5)
    np.testing.assert_allclose(mean["clip_high"], ((ratio > 1.28) & (micro.advantages > 0))[trained]
                               .mean(), rtol=1e-5)
    gap = np.abs(logp - micro.behaviour)[trained]
    np.testing.assert_allclose(mean["logprob_gap"], gap.mean(), rtol=1e-5)
    np.testing.assert_allclose(terms.maxima["logprob_gap_max"], gap.max(), rtol=1e-5)
    np.testing.assert_allclose(terms.maxima["ratio_max"], ratio[trained].max(), rtol=1e-5)


def test_tokens_are_counted_by_their_ratio_as_numpy_counts_them(micro):
    logp = logprobs_near(micro.behaviour, 1) * 1.5
    trained = micro.roles > 0
    wild = np.where(trained, logp, np.nan).astype(np.float32)
    _, terms = loss_lib.objective(wild, -logp, micro, None, None, learner_config())
    ratio = np.exp(logp - micro.behaviour)[trained]
    counts, _ = np.histogram(np.clip(ratio, 0, 2), loss_lib.RATIO_EDGES)
    np.testing.assert_array_equal(terms.ratios, counts)
    assert counts.sum() == trained.sum() and (counts > 0).sum() > 3
    twice = loss_lib.add_terms(terms, terms)
    np.testing.assert_array_equal(twice.ratios, 2 * counts)


def test_what_carries_no_weight_can_be_anything(micro):
    c = learner_config(kl_coef=0.1)
    logp = logprobs_near(micro.behaviour, 1)
    wild = np.where(micro.weights > 0, logp, np.nan).astype(np.float32)

    def value_and_gradient(x):
        return jax.value_and_grad(
            lambda x: loss_lib.objective(x, -logp, micro, None, micro.behaviour, c)[0])(x)

    (calm, calm_gradient), (got, gradient) = map(value_and_gradient, (logp, wild))
    np.testing.assert_array_equal(got, calm)
    trained = micro.weights > 0
    np.testing.assert_array_equal(np.asarray(gradient)[trained], np.asarray(calm_gradient)[trained])


def test_log_ratios_are_clamped_before_exp(micro):
    c = learner_config()
    logp = np.where(micro.roles == 1, 500.0, -500.0).astype(np.float32)
    loss, terms = loss_lib.objective(logp, -logp, micro, None, None, c)
    assert np.isfinite(loss)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(terms))


def test_gradients_of_the_kl_estimators():
    """Exact expectations over a small vocabulary: k1 0, k2 of KL(p||q), k3 of KL(q||p)."""
    rng = np.random.default_rng(0)
    logits, q = jnp.asarray(rng.normal(size=V)), jax.nn.log_softmax(jnp.asarray(rng.normal(size=V)))
    p = jax.lax.stop_gradient(jax.nn.softmax(logits))

    def expected(estimator):
        def mean(x):
            return jnp.sum(p * loss_lib.kl(jax.nn.log_softmax(x), q, estimator, 20))

        return jax.grad(mean)(logits)

    def reverse(x):
        return jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - q))

    def forward(x):
        return jnp.sum(jnp.exp(q) * (q - jax.nn.log_softmax(x)))

    np.testing.assert_allclose(expected("k1"), np.zeros(V), atol=1e-6)
    np.testing.assert_allclose(expected("k2"), jax.grad(reverse)(logits), atol=1e-6)
    np.testing.assert_allclose(expected("k3"), jax.grad(forward)(logits), atol=1e-6)


@pytest.mark.parametrize("block", [V, 4, 1])
def test_token_logprobs_by_blocks_equal_the_whole_softmax(block):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(R, L, D)).astype(np.float32)
    head = rng.normal(size=(D, V)).astype(np.float32)
    tokens = rng.integers(0, V, (R, L)).astype(np.int32)

    def run(head):
        return loss_lib.token_logprobs(lambda rows, h: h @ rows.T, head.T, jnp.asarray(hidden),
                                       tokens, V, block)

    logprobs, entropy = run(head)
    scores = hidden.astype(np.float64) @ head
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    assert not np.any(logprobs[:, 0]) and not np.any(entropy[:, 0])
    for r, t in np.ndindex(R, L - 1):
        np.testing.assert_allclose(logprobs[r, t + 1], log_p[r, t, tokens[r, t + 1]], rtol=1e-5)
        np.testing.assert_allclose(entropy[r, t + 1],
                                   -(np.exp(log_p[r, t]) * log_p[r, t]).sum(), rtol=1e-5)
    gradient = jax.grad(lambda w: run(w)[0].sum() + run(w)[1].sum())(head)
    onehot = np.eye(V)[tokens[:, 1:]]
    want = np.einsum("rtd,rtv->dv", hidden[:, :-1], onehot - np.exp(log_p[:, :-1]))
    np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens, vocab, block", [
    (8192, 40, 40), (20480, 248_000, 3072), (10**6, 248_000, 256)])
def test_the_block_of_the_head_fits(tokens, vocab, block):
    assert loss_lib.head_block(tokens, vocab) == block


def test_empty_maximum_is_zero():
    assert loss_lib.masked_max(jnp.ones(3), jnp.zeros(3)) == 0
