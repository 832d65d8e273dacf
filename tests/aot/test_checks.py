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
from rime_jax.policy import qwen3

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")

# Logits of 256 tokens are made at one time (learner.loss.head_chunk).
VOCABULARY, TOKENS, CHUNK = 1 << 18, 1024, 256
POLICY = qwen3.Qwen3(qwen3.Qwen3Config(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=8,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16), remat="layer")


@pytest.fixture(scope="module")
def learner():
    config = config_lib.default()
    config.learner.mesh_data, config.learner.mesh_fsdp = 1, 8
    config.learner.row_tokens, config.learner.microbatch_rows = TOKENS, 8
    return update.Learner(POLICY, config, mesh_lib.make_mesh(config.learner, jax.devices()[:8]))


@pytest.fixture(scope="module")
def module(learner):
    return hlo.parse(learner.lower_update(2).compile().as_text())


def test_the_update_makes_no_array_of_tokens_times_vocabulary(module):
    assert checks.whole_logits(module, TOKENS, VOCABULARY) == []
    # The chunks are there: the check sees what it looks for.
    assert checks.whole_logits(module, CHUNK, VOCABULARY)


def test_the_update_gathers_no_parameter_of_all_layers(module):
    assert checks.whole_stacks(module, POLICY.shapes()) == []


def test_the_head_does_not_travel_for_each_chunk(module):
    size = VOCABULARY * POLICY.config.hidden_size * 4
    micro_batches = 2
    found = traffic.measure(module, micro_batches).collectives
    moved = {kind: c.bytes for kind, c in found.items()}
    assert size <= moved["all-gather"] < (micro_batches + 0.5) * size
    reduced = moved.get("reduce-scatter", 0) + moved.get("all-reduce", 0)
    assert micro_batches * size <= reduced < (micro_batches + 0.5) * size


def test_logits_of_all_tokens_and_whole_stacks_are_found_where_they_are(learner):
    at = learner.params_at["layers"]["gate"]
    stack = jax.ShapeDtypeStruct((8, 64, 96), jnp.float32, sharding=at)
    everywhere = NamedSharding(at.mesh, P())
    gathered = jax.jit(lambda w: w * 2, out_shardings=everywhere).lower(stack).compile()
    assert checks.whole_stacks(hlo.parse(gathered.as_text()), POLICY.shapes())
    hidden = jax.ShapeDtypeStruct((TOKENS, 64), jnp.float32, sharding=everywhere)
    table = jax.ShapeDtypeStruct((VOCABULARY, 64), jnp.float32, sharding=everywhere)
    logits = jax.jit(lambda h, w: jnp.exp(h @ w.T).sum()).lower(hidden, table).compile()
    assert checks.whole_logits(hlo.parse(logits.as_text()), TOKENS, VOCABULARY)


def test_the_pass_over_the_reference_is_the_same_forward(learner):
    module = hlo.parse(learner.lower_logprobs(2).compile().as_text())
    assert checks.whole_logits(module, TOKENS, VOCABULARY) == []
    assert checks.whole_stacks(module, POLICY.shapes()) == []
