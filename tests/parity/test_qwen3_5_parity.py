"""Qwen3.5 against transformers' `Qwen3_5ForCausalLM` in float32: logits and gradients."""

import dataclasses

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers.models.qwen3_5")

from transformers.models import qwen3_5 as theirs  # noqa: E402

from rime_jax.policy import qwen3_5  # noqa: E402
from tests.parity import torch_reference  # noqa: E402

L, F = "linear_attention", "full_attention"
BASE = qwen3_5.Qwen3_5Config(
    vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
CONFIGS = {
    "grouped, untied, the published pattern": BASE,
    "two periods scanned, tied": dataclasses.replace(
        BASE, num_hidden_layers=8, tie_word_embeddings=True),
    "full first and last, multi-head, one value head per key head": dataclasses.replace(
        BASE, layer_types=(F, L, L, F), num_key_value_heads=4, linear_num_value_heads=2,
        rope_theta=1e4, partial_rotary_factor=0.5),
    "linear first and last, large heads": dataclasses.replace(
        BASE, layer_types=(L, F, L), num_hidden_layers=3, head_dim=24, linear_key_head_dim=8,
        linear_value_head_dim=24, rope_theta=1e6, tie_word_embeddings=True),
    "full first, linear last, one key head, all features rotary": dataclasses.replace(
        BASE, layer_types=(F, L), num_hidden_layers=2, num_key_value_heads=1, head_dim=8,
        linear_num_key_heads=1, linear_num_value_heads=3, partial_rotary_factor=1.0),
    "linear only, wide convolution, large epsilon": dataclasses.replace(
        BASE, layer_types=(L, L), num_hidden_layers=2, linear_conv_kernel_dim=6,
        rms_norm_eps=1e-2),
    "full only": dataclasses.replace(
        BASE, layer_types=(F, F), num_hidden_layers=2, rope_theta=100.0,
        tie_word_embeddings=True),
    "every second layer full": dataclasses.replace(
        BASE, num_hidden_layers=4, full_attention_interval=2, linear_num_key_heads=4),
}


def reference_config(config):
    fields = dataclasses.asdict(config)
    rope = {"rope_type": "default"} | {
        name: fields.pop(name) for name in ("rope_theta", "partial_rotary_factor")}
    return theirs.Qwen3_5TextConfig(**fields | {
        "layer_types": list(config.kinds), "rope_parameters": rope})


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients_are_those_of_transformers(name):
    config = CONFIGS[name]
    model = torch_reference.random_model(
        theirs.Qwen3_5ForCausalLM, reference_config(config), seed=1)
    torch_reference.assert_same_function(
        qwen3_5.Qwen3_5(config), qwen3_5.HF_NAMES, model, seed=2)
