"""Qwen3.5 against a page of plain numpy, and the promises of the policy protocol."""

import dataclasses

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy import qwen3_5
from tests.policy.conditioning import slow_decays

L, F = "linear_attention", "full_attention"
BASE = qwen3_5.Qwen3_5Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6,
    partial_rotary_factor=0.5, rope_theta=1e4, initializer_range=0.5)
CONFIGS = {
    "the published pattern": BASE,
    "two periods scanned, tied": dataclasses.replace(
        BASE, num_hidden_layers=8, tie_word_embeddings=True),
    "full first and last, one value head per key head": dataclasses.replace(
        BASE, layer_types=(F, L, F), num_hidden_layers=3, linear_num_value_heads=2,
        num_key_value_heads=1, partial_rotary_factor=0.25, rms_norm_eps=1e-2),
    "linear only, wide convolution": dataclasses.replace(
        BASE, layer_types=(L, L), num_hidden_layers=2, linear_conv_kernel_dim=6),
    "full only": dataclasses.replace(BASE, layer_types=(F,), num_hidden_layers=1),
}
POLICY = qwen3_5.Qwen3_5(BASE)
FORWARD, LOGITS, EXTEND = (jax.jit(f) for f in (POLICY.forward, POLICY.logits, POLICY.extend))


def random_params(policy, seed=0):
    """`init` leaves norms alike; the oracle should notice where they are applied."""
    params = policy.init(jax.random.key(seed))
    rng = np.random.default_rng(seed)

    def moved(a):
        # Matrices stay: in a wilder model rounding alone moves logits by more than the tolerance.
        noise = 0.2 * rng.normal(size=a.shape).astype(np.float32)
        return a + noise if a.ndim <= 2 else a

    return slow_decays(jax.tree.map(moved, params))


PARAMS = random_params(POLICY)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms(x, eps):
    return x / np.sqrt(np.mean(x * x) + eps)


def numpy_linear(c, p, normed):
    """Outputs of a gated DeltaNet layer, one token and one head at a time."""
    J, M, E = c.linear_num_key_heads, c.linear_key_head_dim, c.linear_value_head_dim
    W, group = c.linear_conv_kernel_dim, c.linear_num_value_heads // c.linear_num_key_heads
    columns = [np.zeros(p["qkv"].shape[1])] * (W - 1) + [x @ p["qkv"] for x in normed]
    states = np.zeros((c.linear_num_value_heads, M, E))
    outputs = []
    for t, x in enumerate(normed):
        mixed = sum(p["conv"][i] * columns[t + i] for i in range(W))
        mixed = mixed * sigmoid(mixed)
        heads = []
        for h, S in enumerate(states):
            j = h // group
            own = mixed.reshape(J, -1)[j]
            q, k = own[:M], own[M : 2 * M]
            q, k = (a / np.sqrt(a @ a + 1e-6) for a in (q, k))
            v = own[2 * M + (h - j * group) * E :][:E]
            rate = np.exp(p["decay"][h]) * np.log1p(np.exp((x @ p["a"])[h] + p["dt_bias"][h]))
            S *= np.exp(-rate)
            S += np.outer(k, sigmoid((x @ p["b"])[h]) * (v - S.T @ k))
            z = (x @ p["z"])[h * E :][:E]
            heads.append(rms(S.T @ q / np.sqrt(M), c.rms_norm_eps) * p["out_norm"]
                         * z * sigmoid(z))
        outputs.append(np.concatenate(heads) @ p["out"])
    return outputs


def numpy_full(c, p, normed):
    """Outputs of a gated attention layer, one token and one head at a time."""
    N, group = c.head_dim, c.num_attention_heads // c.num_key_value_heads

    def rotate(x, position):
        half = c.rotated // 2
        turned = (x[:half] + 1j * x[half : 2 * half]) * np.exp(
            1j * position * c.rope_theta ** (-np.arange(half) / half))
        return np.concatenate([turned.real, turned.imag, x[2 * half :]])

    def normed_and_rotated(x, weight, position):
        return rotate(rms(x, c.rms_norm_eps) * (1 + weight), position)

    outputs = []
    keys, values = ([(x @ p[n]).reshape(-1, N) for x in normed] for n in ("k", "v"))
    keys = [[normed_and_rotated(k, p["k_norm"], t) for k in ks] for t, ks in enumerate(keys)]
    for t, x in enumerate(normed):
        heads = []
        for h, both in enumerate((x @ p["q"]).reshape(-1, 2 * N)):
            q = normed_and_rotated(both[:N], p["q_norm"], t)
            scores = np.array([q @ keys[s][h // group] for s in range(t + 1)]) / np.sqrt(N)
            weights = np.exp(scores - scores.max())
            mixed = sum(w * values[s][h // group] for s, w in enumerate(weights / weights.sum()))
            heads.append(mixed * sigmoid(both[N:]))
        outputs.append(np.concatenate(heads) @ p["o"])
    return outputs


def numpy_logits(config, params, tokens):
    """Logits [T, V] of one sequence, in float64."""
    c = config
    params = jax.tree.map(lambda a: np.asarray(a, np.float64), params)

    def norm(x, weight):
        return rms(x, c.rms_norm_eps) * (1 + weight)

    hidden = [params["embed"][t] for t in tokens]
    for i, kind in enumerate(c.kinds):
        p = {name: a[c.kinds[:i].count(kind)] for name, a in params[kind].items()}
        mixer = numpy_full if kind == F else numpy_linear
        mixed = mixer(c, p, [norm(x, p["attn_norm"]) for x in hidden])
        for t, y in enumerate(mixed):
            x = hidden[t] + y
            z = norm(x, p["mlp_norm"])
            gate = z @ p["gate"]
            hidden[t] = x + (gate * sigmoid(gate) * (z @ p["up"])) @ p["down"]
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
    policy = qwen3_5.Qwen3_5(config)
    params = random_params(policy, seed=1)
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, (1, 70)).astype(np.int32)

    @jax.jit
    def logits(params):
        hidden = policy.forward(params, tokens, jnp.arange(70)[None], jnp.ones_like(tokens))
        return policy.logits(params, hidden)

    expected = numpy_logits(config, params, tokens[0])
    assert np.std(expected) > 0.3
    np.testing.assert_allclose(logits(params)[0], expected, rtol=2e-4, atol=2e-4)


def test_packed_sequences_equal_sequences_alone():
    rng = np.random.default_rng(3)
    parts = [rng.integers(0, 24, n) for n in (40, 1, 34)]
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


def random_cache(rng):
    """A slot still holds what an earlier session left there."""
    return jax.tree.map(lambda a: a + rng.normal(size=a.shape).astype(np.float32) * 5,
                        POLICY.init_cache(ROWS, CONTEXT))


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(seed=st.integers(0, 2**32 - 1))
def test_extend_in_chunks_of_any_size_equals_forward(seed):
    rng = np.random.default_rng(seed)
    totals = rng.integers(1, CONTEXT + 1, ROWS)
    sequences = rng.integers(0, 24, (ROWS, CONTEXT))
    expected = [full_logits(PARAMS, row) for row in sequences]
    cache = random_cache(rng)
    start = np.zeros(ROWS, np.int32)
    while (start < totals).any():
        # Chunks and single steps, as a sampler mixes them.
        width = rng.choice([1, CHUNK])
        count = np.minimum(rng.integers(0, width + 1, ROWS), totals - start).astype(np.int32)
        garbage = rng.integers(0, 24, (ROWS, width)).astype(np.int32)
        for b in range(ROWS):
            garbage[b, : count[b]] = sequences[b, start[b] : start[b] + count[b]]
        hidden, cache = EXTEND(PARAMS, cache, garbage, start, count)
        logits = np.asarray(LOGITS(PARAMS, hidden))
        for b in range(ROWS):
            np.testing.assert_allclose(
                logits[b, : count[b]], expected[b][start[b] : start[b] + count[b]],
                rtol=1e-4, atol=1e-4)
        start += count


@pytest.mark.parametrize("width", [1, CHUNK])
def test_idle_rows_keep_their_cache_bit_for_bit(width):
    rng = np.random.default_rng(5)
    before = random_cache(rng)
    # A sampler gives idle slots start 0, whatever they hold.
    start, count = np.array([0, 0, 7], np.int32), np.array([0, 1, 0], np.int32)
    tokens = rng.integers(0, 24, (ROWS, width)).astype(np.int32)
    _, after = EXTEND(PARAMS, before, tokens, start, count)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        changed = (np.asarray(old) != np.asarray(new)).reshape(ROWS, -1).any(1)
        np.testing.assert_array_equal(changed, [False, True, False])


def loss_and_gradients(policy, params, tokens):
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32)[None], tokens.shape)

    @jax.jit
    @jax.value_and_grad
    def loss(params, tokens):
        hidden = policy.forward(params, tokens, positions, jnp.ones_like(tokens))
        return jnp.mean(jnp.square(policy.logits(params, hidden)))

    return loss(params, tokens)


def assert_near(found, expected):
    """Errors are small against the largest entry of each tensor."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max()),
        found, expected)


@pytest.mark.parametrize("layers, kind", [(4, "layer"), (8, "layer"), (8, "matmuls")])
def test_gradients_with_and_without_rematerialisation_agree(layers, kind):
    policy = qwen3_5.Qwen3_5(dataclasses.replace(BASE, num_hidden_layers=layers))
    params = random_params(policy)
    tokens = np.random.default_rng(6).integers(0, 24, (2, 8)).astype(np.int32)
    assert_near(
        loss_and_gradients(policy, params, tokens),
        loss_and_gradients(dataclasses.replace(policy, remat=kind), params, tokens))


def test_eight_devices_give_the_loss_and_gradients_of_one():
    mesh = mesh_lib.make_mesh({"mesh_data": 2, "mesh_fsdp": 2, "mesh_tensor": 2}, jax.devices())
    placed = jax.device_put(
        PARAMS, mesh_lib.shardings(mesh, POLICY.logical_axes(), POLICY.shapes()))
    tokens = np.random.default_rng(7).integers(0, 24, (4, 70)).astype(np.int32)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh_lib.ROWS, None))
    sharded = loss_and_gradients(POLICY, placed, jax.device_put(tokens, rows))
    assert_near(sharded, loss_and_gradients(POLICY, PARAMS, tokens))


@pytest.mark.parametrize("name", CONFIGS)
def test_logical_axes_name_every_axis_of_every_parameter(name):
    policy = qwen3_5.Qwen3_5(CONFIGS[name])
    axes = jax.tree.flatten(policy.logical_axes(), is_leaf=lambda x: isinstance(x, tuple))
    shapes = jax.tree.flatten(policy.shapes())
    assert axes[1] == shapes[1]
    assert [len(a) for a in axes[0]] == [len(s.shape) for s in shapes[0]]
    assert {a for leaf in axes[0] for a in leaf} <= {*mesh_lib.RULES, None}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_has_a_name_at_hugging_face(name):
    policy = qwen3_5.Qwen3_5(CONFIGS[name])
    names = set()
    for path, shape in jax.tree_util.tree_leaves_with_path(policy.shapes()):
        key = "/".join(part.key for part in path)
        theirs, _ = qwen3_5.HF_NAMES[key]
        if "{}" in theirs:
            assert len(policy.hf_layers(key)) == shape.shape[0]
            names |= {theirs.format(i) for i in policy.hf_layers(key)}
        else:
            names.add(theirs)
    layers = [sum(f"layers.{i}.input_layernorm" in n for n in names)
              for i in range(policy.config.num_hidden_layers)]
    assert set(layers) == {1}


def test_the_published_4b_has_its_number_of_parameters():
    config = qwen3_5.Qwen3_5Config(
        vocab_size=248320, hidden_size=2560, intermediate_size=9216, num_hidden_layers=32,
        num_attention_heads=16, num_key_value_heads=4, head_dim=256, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
        tie_word_embeddings=True)
    assert config.stacks[F] == [3, 7, 11, 15, 19, 23, 27, 31]
    assert config.rotated == 64
    shapes = jax.tree.leaves(qwen3_5.Qwen3_5(config).shapes())
    # Counted in transformers' model of this configuration, made without memory.
    assert sum(int(np.prod(s.shape)) for s in shapes) == 4_205_751_296


def test_bfloat16_is_near_float32_and_its_logits_and_states_are_float32():
    policy = dataclasses.replace(POLICY, dtype=jnp.bfloat16)
    tokens = np.random.default_rng(8).integers(0, 24, (1, 12)).astype(np.int32)
    positions = np.arange(12, dtype=np.int32)[None]
    hidden = jax.jit(policy.forward)(PARAMS, tokens, positions, np.ones_like(tokens))
    assert hidden.dtype == jnp.bfloat16
    logits = policy.logits(PARAMS, hidden)
    assert logits.dtype == jnp.float32
    expected = full_logits(PARAMS, tokens[0])
    # A head whose output is nearly 0 is normed up with its rounding, so single errors are large.
    assert np.sqrt(np.mean((logits[0] - expected) ** 2)) < 0.1 * np.std(expected)
    cache = policy.init_cache(1, 12)
    _, extended = jax.jit(policy.extend)(
        PARAMS, cache, tokens, np.zeros(1, np.int32), np.full(1, 12, np.int32))
    assert jax.tree.map(lambda a: a.dtype, extended) == jax.tree.map(lambda a: a.dtype, cache)
    assert extended[0][1].dtype == jnp.float32


def test_impossible_sizes_are_refused():
    for change, message in (
            ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
            ({"linear_num_value_heads": 3}, "linear_num_value_heads = 3"),
            ({"partial_rotary_factor": 0.1}, "0 features"),
            ({"partial_rotary_factor": 0.375}, "3 features"),
            ({"layer_types": (L, F)}, "give 4"),
            ({"layer_types": (L, L, L, "sliding_attention")}, "sliding_attention")):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(BASE, **change)
