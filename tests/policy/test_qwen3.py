"""Qwen3 against a page of plain numpy, and the promises of the policy protocol."""

import dataclasses

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy import layers, qwen3

GROUPED = qwen3.Qwen3Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.5)
# In some of them head_dim × heads is not hidden_size.
CONFIGS = {
    "grouped, tied": GROUPED,
    "multi-head, untied": dataclasses.replace(
        GROUPED, num_key_value_heads=4, head_dim=4, tie_word_embeddings=False, rope_theta=1e4),
    "one key head, three layers": dataclasses.replace(
        GROUPED, num_key_value_heads=1, head_dim=6, num_hidden_layers=3, rope_theta=100.0),
    "scanned layers, large vocabulary, large epsilon": dataclasses.replace(
        GROUPED, vocab_size=600, num_hidden_layers=7, rms_norm_eps=1e-2),
}
POLICY = qwen3.Qwen3(GROUPED)
FORWARD, LOGITS, EXTEND = (jax.jit(f) for f in (POLICY.forward, POLICY.logits, POLICY.extend))


def random_params(policy, seed=0):
    """`init` leaves norms at 1; the oracle should notice where they are applied."""
    params = policy.init(jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: a + 0.2 * rng.normal(size=a.shape).astype(np.float32), params)


PARAMS = random_params(POLICY)


def numpy_logits(config, params, tokens):
    """Logits [T, V] of one sequence, in float64, one head and one position at a time."""
    c = config
    params = jax.tree.map(lambda a: np.asarray(a, np.float64), params)

    def norm(x, weight):
        return x / np.sqrt(np.mean(x * x) + c.rms_norm_eps) * weight

    def rotate(x, position):
        half = c.head_dim // 2
        turned = x[:half] + 1j * x[half:]
        turned = turned * np.exp(
            1j * position * c.rope_theta ** (-2 * np.arange(half) / c.head_dim))
        return np.concatenate([turned.real, turned.imag])

    def head(x, matrix, i):
        return x @ matrix[:, i * c.head_dim : (i + 1) * c.head_dim]

    hidden = [params["embed"][t] for t in tokens]
    group = c.num_attention_heads // c.num_key_value_heads
    for layer in range(c.num_hidden_layers):
        p = {name: stacked[layer] for name, stacked in params["layers"].items()}
        normed = [norm(x, p["attn_norm"]) for x in hidden]
        mixed = [[] for _ in tokens]
        for h in range(c.num_attention_heads):
            keys = [rotate(norm(head(x, p["k"], h // group), p["k_norm"]), t)
                    for t, x in enumerate(normed)]
            values = [head(x, p["v"], h // group) for x in normed]
            for t, x in enumerate(normed):
                query = rotate(norm(head(x, p["q"], h), p["q_norm"]), t)
                scores = np.array([query @ keys[s] for s in range(t + 1)]) / np.sqrt(c.head_dim)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                mixed[t].append(sum(w * values[s] for s, w in enumerate(weights)))
        for t, x in enumerate(hidden):
            x = x + np.concatenate(mixed[t]) @ p["o"]
            y = norm(x, p["mlp_norm"])
            gate = y @ p["gate"]
            hidden[t] = x + (gate / (1 + np.exp(-gate)) * (y @ p["up"])) @ p["down"]
    output = params["embed"] if c.tie_word_embeddings else params["head"]
    return np.array([output @ norm(x, params["final_norm"]) for x in hidden])


def full_logits(params, tokens):
    """Logits [T, V] of one sequence by `forward`."""
    tokens = np.asarray(tokens, np.int32)[None]
    positions = np.arange(tokens.shape[1], dtype=np.int32)[None]
    hidden = FORWARD(params, tokens, positions, np.ones_like(tokens))
    return np.asarray(LOGITS(params, hidden))[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_plain_numpy(name):
    config = CONFIGS[name]
    policy = qwen3.Qwen3(config)
    params = random_params(policy, seed=1)
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, (1, 9)).astype(np.int32)

    @jax.jit
    def logits(params):
        hidden = policy.forward(params, tokens, jnp.arange(9)[None], jnp.ones_like(tokens))
        return policy.logits(params, hidden)

    expected = numpy_logits(config, params, tokens[0])
    assert np.std(expected) > 0.3
    np.testing.assert_allclose(logits(params)[0], expected, rtol=2e-4, atol=2e-4)


def test_packed_sequences_equal_sequences_alone():
    rng = np.random.default_rng(3)
    parts = [rng.integers(0, 24, n) for n in (5, 1, 8)]
    pad = 2
    tokens = np.concatenate([*parts, np.zeros(pad, int)])[None].astype(np.int32)
    positions = np.concatenate([*(np.arange(len(p)) for p in parts), np.zeros(pad, int)])[None]
    segments = np.concatenate([np.full(len(p), i + 1) for i, p in enumerate(parts)]
                              + [np.zeros(pad, int)])[None]
    hidden = FORWARD(PARAMS, tokens, positions.astype(np.int32), segments.astype(np.int32))
    packed = np.asarray(LOGITS(PARAMS, hidden))[0]
    assert np.isfinite(packed).all()
    start = 0
    for part in parts:
        np.testing.assert_allclose(
            packed[start : start + len(part)], full_logits(PARAMS, part), rtol=1e-4, atol=1e-4)
        start += len(part)


def test_only_earlier_tokens_of_the_own_segment_have_gradients():
    # Every token has an embedding row of its own, so that rows of the gradient are tokens.
    T = 10
    tokens = jnp.arange(T)[None]
    segments = jnp.array([[1] * 4 + [2] * 6])
    positions = jnp.concatenate([jnp.arange(4), jnp.arange(6)])[None]
    weights = jax.random.normal(jax.random.key(4), (1, T, 16))

    @jax.jit
    @jax.vmap
    def influence(t):
        def pooled(embed):
            hidden = POLICY.forward({**PARAMS, "embed": embed}, tokens, positions, segments)
            return jnp.sum((hidden * weights)[0, t])

        return jnp.abs(jax.grad(pooled)(PARAMS["embed"])[:T]).sum(1)

    # In float32 nothing may leak, not even a rounding error.
    reached = np.asarray(influence(jnp.arange(T))) > 0
    same_segment = np.asarray(segments[0][:, None] == segments[0][None])
    np.testing.assert_array_equal(reached, same_segment & np.tri(T, dtype=bool))


ROWS, CHUNK, CONTEXT = 3, 6, 20


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(seed=st.integers(0, 2**32 - 1))
def test_extend_in_chunks_of_any_size_equals_forward(seed):
    rng = np.random.default_rng(seed)
    totals = rng.integers(1, CONTEXT + 1, ROWS)
    sequences = rng.integers(0, 24, (ROWS, CONTEXT))
    expected = [full_logits(PARAMS, row) for row in sequences]
    cache = POLICY.init_cache(ROWS, CONTEXT)
    # A slot still holds what an earlier session left there.
    cache = jax.tree.map(lambda a: a + rng.normal(size=a.shape).astype(np.float32) * 5, cache)
    start = np.zeros(ROWS, np.int32)
    while (start < totals).any():
        count = np.minimum(rng.integers(0, CHUNK + 1, ROWS), totals - start).astype(np.int32)
        garbage = rng.integers(0, 24, (ROWS, CHUNK)).astype(np.int32)
        for b in range(ROWS):
            garbage[b, : count[b]] = sequences[b, start[b] : start[b] + count[b]]
        hidden, cache = EXTEND(PARAMS, cache, garbage, start, count)
        logits = np.asarray(LOGITS(PARAMS, hidden))
        for b in range(ROWS):
            np.testing.assert_allclose(
                logits[b, : count[b]], expected[b][start[b] : start[b] + count[b]],
                rtol=1e-4, atol=1e-4)
        start += count


def test_extend_writes_the_counted_tokens_and_nothing_else():
    rng = np.random.default_rng(5)
    before = jax.tree.map(
        lambda a: rng.normal(size=a.shape).astype(np.float32), POLICY.init_cache(ROWS, CONTEXT))
    # The second row is idle; the last one ends at the end of the cache.
    start, count = np.array([4, 7, CONTEXT - 2], np.int32), np.array([3, 0, 2], np.int32)
    tokens = rng.integers(0, 24, (ROWS, CHUNK)).astype(np.int32)
    _, after = EXTEND(PARAMS, before, tokens, start, count)
    written = (np.arange(CONTEXT) >= start[:, None]) & (
        np.arange(CONTEXT) < (start + count)[:, None])
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        changed = (np.asarray(old) != np.asarray(new)).any((1, 3))
        np.testing.assert_array_equal(changed, written)


@pytest.mark.parametrize("kind", layers.REMATS[1:])
def test_gradients_with_and_without_rematerialisation_agree(kind):
    tokens = jax.random.randint(jax.random.key(6), (2, 8), 0, 24)
    positions = jnp.broadcast_to(jnp.arange(8)[None], (2, 8))

    def gradients(remat):
        policy = dataclasses.replace(POLICY, remat=remat)

        def loss(params):
            hidden = policy.forward(params, tokens, positions, jnp.ones_like(tokens))
            return jnp.mean(jnp.square(policy.logits(params, hidden)))

        return jax.jit(jax.grad(loss))(PARAMS)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        gradients("none"), gradients(kind))


@pytest.mark.parametrize("name", CONFIGS)
def test_logical_axes_name_every_axis_of_every_parameter(name):
    policy = qwen3.Qwen3(CONFIGS[name])
    axes = jax.tree.flatten(policy.logical_axes(), is_leaf=lambda x: isinstance(x, tuple))
    shapes = jax.tree.flatten(policy.shapes())
    assert axes[1] == shapes[1]
    assert [len(a) for a in axes[0]] == [len(s.shape) for s in shapes[0]]


@pytest.mark.parametrize("fsdp, tensor", [(8, 1), (2, 4), (1, 2)])
def test_sharded_parameters_give_the_logits_of_one_device(fsdp, tensor):
    devices = jax.devices()[: fsdp * tensor]
    mesh = mesh_lib.make_mesh(
        {"mesh_data": 1, "mesh_fsdp": fsdp, "mesh_tensor": tensor}, devices)
    placed = jax.device_put(
        PARAMS, mesh_lib.shardings(mesh, POLICY.logical_axes(), POLICY.shapes()))
    tokens = np.random.default_rng(7).integers(0, 24, (8, 6)).astype(np.int32)
    positions = np.tile(np.arange(6, dtype=np.int32), (8, 1))

    @jax.jit
    def logits(params, tokens):
        return POLICY.logits(params, POLICY.forward(params, tokens, positions,
                                                    jnp.ones_like(tokens)))

    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh_lib.ROWS, None))
    np.testing.assert_allclose(
        logits(placed, jax.device_put(tokens, rows)), logits(PARAMS, tokens),
        rtol=1e-4, atol=1e-4)


def test_bfloat16_is_near_float32_and_its_logits_are_float32():
    policy = dataclasses.replace(POLICY, dtype=jnp.bfloat16)
    tokens = np.random.default_rng(8).integers(0, 24, (1, 12)).astype(np.int32)
    positions = np.arange(12, dtype=np.int32)[None]
    hidden = jax.jit(policy.forward)(PARAMS, tokens, positions, np.ones_like(tokens))
    assert hidden.dtype == jnp.bfloat16
    logits = policy.logits(PARAMS, hidden)
    assert logits.dtype == jnp.float32
    expected = full_logits(PARAMS, tokens[0])
    assert np.abs(logits[0] - expected).max() < 0.1 * np.std(expected)


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="num_key_value_heads = 3"):
        dataclasses.replace(GROUPED, num_key_value_heads=3)
    with pytest.raises(ValueError, match="head_dim = 7"):
        dataclasses.replace(GROUPED, head_dim=7)
