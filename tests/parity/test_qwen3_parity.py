"""Qwen3 and Llama against transformers' classes in float32: logits and gradients."""

import dataclasses

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers.models.qwen3")

import transformers  # noqa: E402

from rime_jax.policy import qwen3, rope  # noqa: E402
from tests.parity import torch_reference  # noqa: E402

GROUPED = qwen3.Qwen3Config(
    vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16)
CONFIGS = {
    "grouped, tied": GROUPED,
    "multi-head, untied": dataclasses.replace(
        GROUPED, num_key_value_heads=4, head_dim=8, tie_word_embeddings=False, rope_theta=1e4),
    "one key head": dataclasses.replace(GROUPED, num_key_value_heads=1, head_dim=6),
    "large heads, untied": dataclasses.replace(
        GROUPED, head_dim=24, tie_word_embeddings=False, rope_theta=100.0),
    "scanned layers": dataclasses.replace(GROUPED, num_hidden_layers=7, num_attention_heads=6),
    "large epsilon, large vocabulary": dataclasses.replace(
        GROUPED, vocab_size=600, rms_norm_eps=1e-2),
}
LLAMA = dataclasses.replace(GROUPED, qk_norm=False, head_dim=8, rope_theta=1e4)
LLAMA_CONFIGS = {
    "grouped, tied": LLAMA,
    "multi-head, untied": dataclasses.replace(
        LLAMA, num_key_value_heads=4, tie_word_embeddings=False, rms_norm_eps=1e-5),
    "large heads": dataclasses.replace(LLAMA, head_dim=16, rope_theta=5e5),
    "linear scaling": dataclasses.replace(LLAMA, rope_scaling=rope.LinearScaling(4.0)),
    "llama3 scaling": dataclasses.replace(
        LLAMA, rope_scaling=rope.Llama3Scaling(8.0, 1.0, 4.0, 64), head_dim=16),
    "scanned layers": dataclasses.replace(LLAMA, num_hidden_layers=7),
    "yarn scaling": dataclasses.replace(
        LLAMA, rope_scaling=rope.YarnScaling(4.0, 16, beta_fast=2.0), head_dim=16),
    "yarn scaling, whole": dataclasses.replace(
        LLAMA, rope_scaling=rope.YarnScaling(8.0, 64, truncate=False, attention_factor=1.3),
        head_dim=32),
}


def rope_parameters(config):
    scaling = config.rope_scaling
    kind = next((k for k, made in rope.SCALINGS.items() if isinstance(scaling, made)), "default")
    more = {} if scaling is None else dataclasses.asdict(scaling)
    return {"rope_type": kind, "rope_theta": config.rope_theta, **more}


def reference_fields(config):
    ours = {"qk_norm", "rope_scaling", "rope_theta"}
    fields = {k: v for k, v in dataclasses.asdict(config).items() if k not in ours}
    return fields | {"rope_parameters": rope_parameters(config)}


def assert_same_function(config, model_class, config_class):
    model = torch_reference.random_model(
        model_class, config_class(**reference_fields(config)), seed=1)
    torch_reference.assert_same_function(qwen3.Qwen3(config), qwen3.HF_NAMES, model, seed=2)


@pytest.mark.parametrize("name", CONFIGS)
def test_qwen3_has_the_logits_and_gradients_of_transformers(name):
    assert_same_function(CONFIGS[name], transformers.Qwen3ForCausalLM, transformers.Qwen3Config)


@pytest.mark.parametrize("name", LLAMA_CONFIGS)
def test_llama_has_the_logits_and_gradients_of_transformers(name):
    assert_same_function(
        LLAMA_CONFIGS[name], transformers.LlamaForCausalLM, transformers.LlamaConfig)
