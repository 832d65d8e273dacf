"""The sampler's device program: groups of devices, narrow weights, resharding in one program."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from rime_jax import config as config_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy import qwen3, qwen3_5
from rime_jax.sampler import program

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
    params = jax.device_put(own.narrow(policy.init(jax.random.key(0))), own.params_at)
    tokens = np.arange(SLOTS * CHUNK, dtype=np.int32).reshape(SLOTS, CHUNK) % 24
    full = np.full(SLOTS, CHUNK, np.int32)
    cache, *out = own.step(params, own.empty_cache(), tokens, 0 * full, full, 0 * full + BLOCK,
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
    narrow = jax.jit(lambda p: program.narrow(policy, p))(wide)
    assert {x.dtype for x in jax.tree.leaves(narrow)} == {
        jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}
    tokens = jnp.arange(8, dtype=jnp.int32)[None]

    def logits(params):
        cache = policy.init_cache(1, 16)
        hidden, _ = policy.extend(params, cache, tokens, jnp.zeros(1, jnp.int32),
                                  jnp.full(1, 8, jnp.int32))
        return policy.logits(params, hidden)

    np.testing.assert_array_equal(logits(wide), logits(narrow))


@needs_devices
def test_the_reshard_is_one_program_from_the_learners_layout_to_the_samplers():
    policy = dataclasses.replace(QWEN3, dtype=jnp.bfloat16)
    config = config_lib.default().learner
    config.mesh_data, config.mesh_fsdp, config.mesh_tensor = 1, 8, 1
    mesh = mesh_lib.make_mesh(config, DEVICES[:8])
    compiled = program.lower_reshard(policy, mesh, tensor=2).compile()
    at = mesh_lib.shardings(mesh, policy.logical_axes(), policy.shapes())
    params = jax.device_put(policy.init(jax.random.key(2)), at)
    moved = compiled(params)
    assert moved["layers"]["gate"].sharding.spec == P(None, "fsdp", "tensor")
    assert moved["layers"]["gate"].sharding.shard_shape((2, 16, 32)) == (2, 16, 16)
    jax.tree.map(np.testing.assert_array_equal, moved, program.narrow(policy, params))


def test_devices_that_form_no_groups_are_refused():
    with pytest.raises(ValueError, match="groups of 3"):
        program.SamplerProgram(QWEN3, (), slots=4, context_tokens=8, block=1, devices=[None] * 4,
                               tensor=3)
    with pytest.raises(ValueError, match="sampler.slots = 3"):
        program.SamplerProgram(QWEN3, (), slots=3, context_tokens=8, block=1, devices=[None] * 2)
