"""The compiled update holds no logits of all tokens, and gathers its layers one by one."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rime_jax import config as config_lib
from rime_jax.aot import checks, hlo, traffic
from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import update
from rime_jax.policy import qwen3, qwen3_5
from rime_jax.sampler import program

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")

# Logits of so many entries are made at one time (learner.loss.head_block).
VOCABULARY, TOKENS, BLOCK = 1 << 18, 1024, 1 << 16
SIZES = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=12,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16)
POLICIES = {
    "qwen3": qwen3.Qwen3(qwen3.Qwen3Config(**SIZES), remat="layer"),
    "qwen3_5": qwen3_5.Qwen3_5(qwen3_5.Qwen3_5Config(
        **SIZES, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
        linear_value_head_dim=16, partial_rotary_factor=0.5, tie_word_embeddings=True),
        remat="layer"),
}


@pytest.fixture(scope="module", params=POLICIES)
def policy(request):
    return POLICIES[request.param]


@pytest.fixture(scope="module")
def learner(policy):
    config = config_lib.default()
    config.learner.mesh_data, config.learner.mesh_fsdp = 1, 8
    config.learner.row_tokens, config.learner.microbatch_rows = TOKENS, 8
    return update.Learner(policy, config, mesh_lib.make_mesh(config.learner, jax.devices()[:8]))


@pytest.fixture(scope="module")
def module(learner):
    return hlo.parse(learner.lower_update(2).compile().as_text())


def test_the_update_makes_no_array_of_tokens_times_vocabulary(module):
    assert checks.whole_logits(module, TOKENS, VOCABULARY) == []
    # The blocks are there: the check sees what it looks for.
    assert checks.whole_logits(module, TOKENS, BLOCK)


def test_the_update_gathers_no_parameter_of_all_layers(module, policy):
    assert checks.whole_stacks(module, policy.shapes()) == []


def test_the_head_is_never_whole_and_travels_once_a_pass(module, policy):
    width, micro_batches = policy.config.hidden_size, 2
    size = VOCABULARY * width
    assert not [i.name for i, a in module.arrays() if {VOCABULARY, width} <= set(a.dims)]
    found = traffic.measure(module, micro_batches).collectives
    moved = {kind: c.bytes for kind, c in found.items()}
    # Forward, and again for the backward pass; what layers move comes to a twentieth.
    assert 1 <= moved["all-gather"] / (2 * micro_batches * size * 4) < 1.2
    reduced = moved.get("reduce-scatter", 0) + moved.get("all-reduce", 0)
    assert 1 <= reduced / (micro_batches * size * 4) < 1.3


def test_logits_of_all_tokens_and_whole_stacks_are_found_where_they_are(learner, policy):
    shapes = policy.shapes()
    stack = next(name for name, tree in shapes.items() if isinstance(tree, dict))
    at, x = learner.params_at[stack]["gate"], shapes[stack]["gate"]
    everywhere = NamedSharding(at.mesh, P())
    gathered = jax.jit(lambda w: w * 2, out_shardings=everywhere).lower(
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at)).compile()
    assert checks.whole_stacks(hlo.parse(gathered.as_text()), shapes)
    hidden = jax.ShapeDtypeStruct((TOKENS, 64), jnp.float32, sharding=everywhere)
    table = jax.ShapeDtypeStruct((VOCABULARY, 64), jnp.float32, sharding=everywhere)
    logits = jax.jit(lambda h, w: jnp.exp(h @ w.T).sum()).lower(hidden, table).compile()
    assert checks.whole_logits(hlo.parse(logits.as_text()), TOKENS, VOCABULARY)


def test_the_pass_over_the_reference_is_the_same_forward(learner, policy):
    module = hlo.parse(learner.lower_reference(2).compile().as_text())
    assert checks.whole_logits(module, TOKENS, VOCABULARY) == []
    assert checks.whole_stacks(module, policy.shapes()) == []


def test_tensor_sharded_delta_layers_exchange_nothing():
    sizes = dict(SIZES, vocab_size=256, num_hidden_layers=2, linear_num_key_heads=2,
                 linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
    policy = qwen3_5.Qwen3_5(qwen3_5.Qwen3_5Config(
        **sizes, layer_types=("linear_attention",) * 2, tie_word_embeddings=True))
    config = config_lib.default()
    config.learner.mesh_data, config.learner.mesh_fsdp, config.learner.mesh_tensor = 1, 4, 2
    config.learner.row_tokens, config.learner.microbatch_rows = 256, 4
    mesh = mesh_lib.make_mesh(config.learner, jax.devices()[:8])
    sampling = program.SamplerProgram(
        policy, (0,), slots=4, context_tokens=64, block=4, devices=jax.devices()[:2], tensor=2)
    for lowered in (update.Learner(policy, config, mesh).lower_update(1), sampling.lower_step(8)):
        found = traffic.measure(hlo.parse(lowered.compile().as_text()), 1).collectives
        assert "all-reduce" in found and not {"collective-permute", "all-to-all"} & set(found)
