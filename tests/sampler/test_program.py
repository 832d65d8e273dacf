"""The sampler's device program: groups of devices, narrow weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rime_jax.policy import qwen3, qwen3_5
from rime_jax.sampler import program, reshard

DEVICES = jax.devices()
QWEN3 = qwen3.Qwen3(qwen3.Qwen3Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.4))
QWEN3_5 = qwen3_5.Qwen3_5(qwen3_5.Qwen3_5Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8))
SLOTS, CONTEXT, BLOCK, CHUNK = 4, 16, 3, 4

needs_devices = pytest.mark.skipif(len(DEVICES) < 8, reason="needs 8 devices")


def generate(policy, devices, tensor):
    own = program.SamplerProgram(policy, (), slots=SLOTS, context_tokens=CONTEXT, block=BLOCK,
                                 devices=DEVICES[:devices], tensor=tensor)
    params = reshard.Reshard(policy, DEVICES[:devices], tensor)(policy.init(jax.random.key(0)))
    tokens = np.arange(SLOTS * CHUNK, dtype=np.int32).reshape(SLOTS, CHUNK) % 24
    full = np.full(SLOTS, CHUNK, np.int32)
    cache, *out = own.step(
        params, own.empty_cache(), None, tokens, 0 * full, full, 0 * full + BLOCK,
        np.zeros((SLOTS, 2), np.uint32), np.zeros(SLOTS, np.float32))
    return jax.device_get(out), cache


@needs_devices
@pytest.mark.parametrize("policy", [QWEN3, QWEN3_5], ids=["qwen3", "qwen3_5"])
def test_groups_that_share_weights_generate_as_one_device(policy):
    alone, _ = generate(policy, 1, 1)
    together, cache = generate(policy, 4, 2)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    last = jax.tree.leaves(cache)[-1]
    assert last.sharding.shard_shape(last.shape)[:2] == (SLOTS // 2, last.shape[1] // 2)


@pytest.mark.parametrize("policy", [QWEN3, QWEN3_5], ids=["qwen3", "qwen3_5"])
def test_narrow_weights_change_no_bit_of_what_is_computed(policy):
    policy = dataclasses.replace(policy, dtype=jnp.bfloat16)
    wide = policy.init(jax.random.key(1))
    narrow = jax.jit(lambda p: reshard.narrow(policy, p))(wide)
    assert {x.dtype for x in jax.tree.leaves(narrow)} == {
        jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}
    tokens = jnp.arange(8, dtype=jnp.int32)[None]

    def logits(params):
        cache = policy.init_cache(1, 16)
        hidden, _ = policy.extend(params, cache, tokens, jnp.zeros(1, jnp.int32),
                                  jnp.full(1, 8, jnp.int32))
        return policy.logits(params, hidden)

    np.testing.assert_array_equal(logits(wide), logits(narrow))


def test_slots_that_cannot_be_spread_are_refused():
    with pytest.raises(ValueError, match="sampler.slots = 3"):
        program.SamplerProgram(QWEN3, (), slots=3, context_tokens=8, block=1, devices=DEVICES[:2])
