"""The chunked delta rule and the convolution against loops over tokens in float64."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from rime_jax.policy import delta_rule

KEY_HEADS, VALUE_HEADS, KEY, VALUE = 2, 4, 8, 6
# From e^-40, where a state is forgotten at once, to 1 - 1e-6, where nothing is.
DECAYS = {"near 0": (10.0, 40.0), "near 1": (1e-8, 1e-6), "mixed": (1e-6, 40.0)}
BETAS = {"near 0": (0.0, 1e-3), "near 1": (1 - 1e-3, 1.0), "mixed": (0.0, 1.0)}


def random_inputs(rng, batch, tokens, decays="mixed", betas="mixed"):
    q, k = (rng.normal(size=(batch, tokens, KEY_HEADS, KEY)) for _ in range(2))
    v = rng.normal(size=(batch, tokens, VALUE_HEADS, VALUE))
    low, high = np.log(DECAYS[decays])
    log_decay = -np.exp(rng.uniform(low, high, v.shape[:3]))
    beta = rng.uniform(*BETAS[betas], v.shape[:3])
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    return tuple(x.astype(np.float32) for x in (q, k, v, log_decay, beta))


def random_segments(rng, batch, tokens):
    """Rows of a few segments of any length, then padding."""
    starts = rng.random((batch, tokens)) < rng.choice([0.0, 0.02, 0.3])
    segments = 1 + np.cumsum(starts, 1)
    padding = np.arange(tokens)[None] >= rng.integers(1, tokens + 1, (batch, 1))
    return np.where(padding, 0, segments).astype(np.int32)


def token_by_token(q, k, v, log_decay, beta, segments, state0):
    """Equation (1) in float64; the state is 0 where a segment starts."""
    repeats = VALUE_HEADS // KEY_HEADS
    q, k = (np.repeat(x.astype(np.float64), repeats, 2) for x in (q, k))
    state, out = state0.astype(np.float64), []
    for t in range(q.shape[1]):
        if t:
            state = state * (segments[:, t] == segments[:, t - 1])[:, None, None, None]
        state = state * np.exp(log_decay[:, t].astype(np.float64))[..., None, None]
        error = v[:, t] - np.einsum("bhn,bhne->bhe", k[:, t], state)
        state = state + k[:, t, :, :, None] * (beta[:, t, :, None] * error)[:, :, None]
        out.append(np.einsum("bhn,bhne->bhe", q[:, t], state))
    return np.stack(out, 1), state


def random_state(rng, batch):
    return rng.normal(size=(batch, VALUE_HEADS, KEY, VALUE)).astype(np.float32)


CHUNKED = jax.jit(delta_rule.chunked, static_argnames="chunk")
STEP = jax.jit(delta_rule.step)


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(
    tokens=st.integers(1, 257), decays=st.sampled_from(list(DECAYS)),
    betas=st.sampled_from(list(BETAS)), seed=st.integers(0, 2**32 - 1))
@hypothesis.example(tokens=257, decays="near 1", betas="near 1", seed=0)
@hypothesis.example(tokens=257, decays="near 0", betas="mixed", seed=1)
@hypothesis.example(tokens=1, decays="mixed", betas="mixed", seed=2)
def test_chunks_equal_the_recurrence_in_packed_rows_of_any_length(tokens, decays, betas, seed):
    rng = np.random.default_rng(seed)
    inputs = random_inputs(rng, 2, tokens, decays, betas)
    segments, state0 = random_segments(rng, 2, tokens), random_state(rng, 2)
    out, state = CHUNKED(*inputs, segments, state0)
    expected, final = token_by_token(*inputs, segments, state0)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(state, final, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("chunk", [1, 2, 16, 64, 256])
def test_the_chunk_does_not_matter(chunk):
    rng = np.random.default_rng(0)
    inputs, segments = random_inputs(rng, 1, 150), random_segments(rng, 1, 150)
    out, state = CHUNKED(*inputs, segments, chunk=chunk)
    expected, final = token_by_token(*inputs, segments, 0 * random_state(rng, 1))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state, final, rtol=1e-4, atol=1e-5)


def test_equal_keys_without_decay_stay_exact():
    # The powers of A have entries of 1e18 here; the inverse of I + A has none above 1.
    rng = np.random.default_rng(1)
    q, k, v, log_decay, beta = random_inputs(rng, 1, 128)
    k = np.repeat(k[:, :1], 128, 1)
    inputs = q, k, v, 0 * log_decay, np.ones_like(beta)
    segments = np.ones((1, 128), np.int32)
    out, _ = CHUNKED(*inputs, segments)
    expected, _ = token_by_token(*inputs, segments, 0 * random_state(rng, 1))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_steps_equal_chunks():
    rng = np.random.default_rng(2)
    inputs, state0 = random_inputs(rng, 3, 20), random_state(rng, 3)
    expected, final = CHUNKED(*inputs, np.ones((3, 20), np.int32), state0)
    state, out = state0, []
    for t in range(20):
        token, state = STEP(*(x[:, t] for x in inputs), state)
        out.append(token)
    np.testing.assert_allclose(np.stack(out, 1), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state, final, rtol=1e-4, atol=1e-5)


def test_tokens_without_decay_and_beta_leave_the_state_bit_for_bit():
    rng = np.random.default_rng(3)
    q, k, v, log_decay, beta = random_inputs(rng, 2, 9)
    state0 = random_state(rng, 2)
    still = q, k, v, 0 * log_decay, 0 * beta
    _, state = CHUNKED(*still, np.ones((2, 9), np.int32), state0)
    np.testing.assert_array_equal(state, state0)
    _, state = STEP(*(x[:, 0] for x in still), state0)
    np.testing.assert_array_equal(state, state0)


def packed_gradients(inputs, segments, weights):
    return jax.jit(jax.grad(
        lambda inputs: jnp.sum(delta_rule.chunked(*inputs, segments)[0] * weights)))(inputs)


def test_packed_segments_have_the_values_and_gradients_of_segments_alone():
    rng = np.random.default_rng(4)
    inputs = random_inputs(rng, 1, 150)
    weights = rng.normal(size=inputs[2].shape).astype(np.float32)
    bounds = [(0, 30), (30, 31), (31, 120), (120, 150)]
    segments = np.concatenate([np.full(b - a, i + 1) for i, (a, b) in enumerate(bounds)])[None]
    packed = CHUNKED(*inputs, segments)[0]
    gradients = packed_gradients(inputs, segments, weights)
    for a, b in bounds:
        alone = tuple(x[:, a:b] for x in inputs)
        ones = np.ones((1, b - a), np.int32)
        np.testing.assert_allclose(packed[:, a:b], CHUNKED(*alone, ones)[0], rtol=1e-4, atol=1e-5)
        for x, y in zip(gradients, packed_gradients(alone, ones, weights[:, a:b]), strict=True):
            np.testing.assert_allclose(x[:, a:b], y, rtol=1e-3, atol=1e-4)


def test_no_gradient_crosses_a_segment():
    rng = np.random.default_rng(5)
    inputs = random_inputs(rng, 1, 150)
    segments = np.repeat([1, 2, 3], [40, 70, 40])[None]
    weights = rng.normal(size=inputs[2].shape) * (segments == 2)[..., None, None]
    for x in packed_gradients(inputs, segments, weights.astype(np.float32)):
        # In float32 not even a rounding error may leak.
        assert (np.asarray(x)[segments != 2] == 0).all()
        assert (np.asarray(x)[segments == 2] != 0).any()


@pytest.mark.parametrize("decays", DECAYS)
def test_gradients_of_long_rows_are_finite(decays):
    rng = np.random.default_rng(6)
    inputs = random_inputs(rng, 1, 8192, decays)
    inputs[3][:, ::7] = -1e4
    segments = np.where(np.arange(8192) < 8000, 1 + np.arange(8192) // 3000, 0)[None]
    for x in packed_gradients(inputs, segments, np.ones_like(inputs[2])):
        assert np.isfinite(x).all()


def test_a_chunk_that_cannot_be_halved_is_refused():
    with pytest.raises(ValueError, match="chunk = 48"):
        delta_rule.chunked(*random_inputs(np.random.default_rng(7), 1, 4),
                           np.ones((1, 4), np.int32), chunk=48)


@pytest.mark.parametrize("tokens", [1, 2, 3, 40])
@pytest.mark.parametrize("width", [1, 4])
def test_convolution_sums_earlier_tokens_of_the_own_segment(tokens, width):
    rng = np.random.default_rng(8)
    x, weight = rng.normal(size=(2, tokens, 5)), rng.normal(size=(width, 5))
    segments = random_segments(rng, 2, tokens)
    expected = np.zeros_like(x)
    for b, t in np.ndindex(2, tokens):
        for i in range(width):
            source = t - width + 1 + i
            if source >= 0 and segments[b, source] == segments[b, t]:
                expected[b, t] += weight[i] * x[b, source]
    out = jax.jit(delta_rule.convolve)(x.astype(np.float32), weight.astype(np.float32), segments)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_convolution_over_a_window_equals_convolution_at_once():
    rng = np.random.default_rng(9)
    x, weight = (rng.normal(size=s).astype(np.float32) for s in ((2, 12, 5), (4, 5)))
    expected = delta_rule.convolve(x, weight, np.ones((2, 12), np.int32))
    window, start = np.zeros((2, 3, 5), np.float32), np.zeros(2, int)
    cached = jax.jit(delta_rule.convolve_cached)
    while (start < 12).any():
        count = np.minimum(rng.integers(0, 4, 2), 12 - start).astype(np.int32)
        fed = rng.normal(size=(2, 4, 5)).astype(np.float32)
        for b in range(2):
            fed[b, : count[b]] = x[b, start[b] : start[b] + count[b]]
        out, window = cached(fed, weight, window, count)
        for b in range(2):
            np.testing.assert_allclose(
                out[b, : count[b]], expected[b, start[b] : start[b] + count[b]],
                rtol=1e-5, atol=1e-5)
        start += count
    np.testing.assert_array_equal(window, x[:, -3:])
