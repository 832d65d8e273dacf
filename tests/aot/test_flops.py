"""The count from sizes agrees with XLA's count of a program without loops."""

import jax
import jax.numpy as jnp
import pytest

from rime_jax.aot import flops
from rime_jax.learner import loss
from rime_jax.policy import qwen3, qwen3_5

T = 64  # one chunk of the delta rule, so that its scan has one iteration
QWEN3 = qwen3.Qwen3Config(
    vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
    num_attention_heads=8, num_key_value_heads=4, head_dim=64)
QWEN3_5 = qwen3_5.Qwen3_5Config(
    vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64, linear_num_key_heads=4,
    linear_num_value_heads=8, linear_key_head_dim=64, linear_value_head_dim=64)


def counted(policy, backward):
    """XLA's count per token, before it optimises."""
    tokens = jnp.arange(T, dtype=jnp.int32)[None]

    def run(params):
        hidden = policy.forward(params, tokens, tokens, jnp.ones_like(tokens))
        V = policy.vocab_size
        return loss.token_logprobs(policy.logits, params, hidden, tokens, V, V)[0].sum()

    program = jax.jit(jax.grad(run) if backward else run)
    return program.lower(policy.shapes()).cost_analysis()["flops"] / T


@pytest.mark.parametrize("policy", [qwen3.Qwen3(QWEN3), qwen3_5.Qwen3_5(QWEN3_5)],
                         ids=["qwen3", "qwen3_5"])
def test_forward(policy):
    assert flops.forward(policy.config, T).total == pytest.approx(counted(policy, False), rel=0.06)


@pytest.mark.parametrize("remat", ["none", "layer"])
@pytest.mark.parametrize("policy, config", [(qwen3.Qwen3, QWEN3), (qwen3_5.Qwen3_5, QWEN3_5)],
                         ids=["qwen3", "qwen3_5"])
def test_update(policy, config, remat):
    work = flops.executed_update(flops.forward(config, T), remat, head_in_blocks=False, fused=False)
    # Passes of the matrix unit are no operations to XLA.
    total = work.dense + work.attention + work.head + work.delta / flops.HIGHEST_PASSES
    assert total == pytest.approx(counted(policy(config, remat=remat), True), rel=0.06)


def test_decoding_costs_two_operations_per_parameter_and_token():
    work = flops.forward(QWEN3, keys=0, decoding=True)
    params = sum(x.size for x in jax.tree.leaves(qwen3.Qwen3(QWEN3).shapes()))
    assert work.total == pytest.approx(2 * params, rel=0.01)


def test_published_sizes_cost_what_their_parameters_say():
    """Six operations per parameter and token, the rule of thumb, for short sequences."""
    from rime_jax.policy import weights

    for name in ("qwen3-4b", "qwen3.5-4b"):
        policy = weights.make_policy(weights.resolve(name), "bfloat16", "layer")
        params = sum(x.size for x in jax.tree.leaves(policy.shapes()))
        work = flops.model_update(flops.forward(policy.config, 0))
        assert work.dense + work.head == pytest.approx(6 * params, rel=0.01)
