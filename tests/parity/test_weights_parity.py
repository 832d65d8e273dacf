"""Model directories between rime_jax and transformers: the same logits after either way."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch")

import jax  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from rime_jax.policy import qwen3, qwen3_5, rope, weights, words  # noqa: E402
from tests.parity import torch_reference  # noqa: E402
from tests.policy.conditioning import slow_decays  # noqa: E402

DECODER = qwen3.Qwen3Config(
    vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16)
LLAMA = dataclasses.replace(DECODER, qk_norm=False, head_dim=8, rope_theta=1e4)
HYBRID = qwen3_5.Qwen3_5Config(
    vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=8)
CONFIGS = {
    "qwen3 tied": DECODER,
    "qwen3 untied": dataclasses.replace(DECODER, tie_word_embeddings=False, head_dim=8),
    "qwen3 linear": dataclasses.replace(DECODER, rope_scaling=rope.LinearScaling(4.0)),
    "llama tied": LLAMA,
    "llama untied, multi-head": dataclasses.replace(
        LLAMA, tie_word_embeddings=False, num_key_value_heads=4),
    "llama linear": dataclasses.replace(LLAMA, rope_scaling=rope.LinearScaling(2.0)),
    "llama llama3": dataclasses.replace(
        LLAMA, rope_theta=5e5, rope_scaling=rope.Llama3Scaling(8.0, 1.0, 4.0, 64)),
    "qwen3_5 untied": HYBRID,
    "qwen3_5 tied, irregular": dataclasses.replace(
        HYBRID, tie_word_embeddings=True, linear_num_value_heads=2,
        layer_types=("full_attention", "linear_attention", "linear_attention", "full_attention")),
}
TOKENIZER = words.word_tokenizer([f"w{i}" for i in range(34)])


def policy_of(config):
    made = qwen3_5.Qwen3_5 if isinstance(config, qwen3_5.Qwen3_5Config) else qwen3.Qwen3
    return made(config)


def assert_same_logits(policy, params, model):
    tokens = np.random.default_rng(1).integers(0, 40, (2, 100)).astype(np.int32)
    positions = np.broadcast_to(np.arange(100, dtype=np.int32)[None], tokens.shape)
    ours = policy.logits(params, policy.forward(params, tokens, positions, np.ones_like(tokens)))
    with torch.no_grad():
        theirs = model(torch.from_numpy(tokens).long()).logits.numpy()
    error = np.abs(ours - theirs).max() / theirs.std()
    print(f"logits {error:.1e}")
    assert theirs.std() > 0.1 and error < torch_reference.LOGIT_TOLERANCE


@pytest.mark.parametrize("name", CONFIGS)
def test_an_exported_model_has_the_same_logits_in_transformers(tmp_path, name):
    policy = policy_of(CONFIGS[name])
    rng = np.random.default_rng(0)
    # Little noise on matrices: in a wilder model rounding alone moves logits by the tolerance.
    params = jax.tree.map(
        lambda a: np.asarray(a) + rng.normal(size=a.shape).astype(np.float32) * 0.02,
        policy.init(jax.random.key(0)))
    params = slow_decays(params)
    weights.save(tmp_path, policy, params, TOKENIZER, max_shard_bytes=20_000)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, local_files_only=True, dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True)
    assert not any(report.values()), report
    assert_same_logits(policy, params, model)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_saved_by_transformers_has_the_same_logits_here(tmp_path, name):
    policy = policy_of(CONFIGS[name])
    weights.save(tmp_path / "config", policy, policy.init(jax.random.key(0)), TOKENIZER)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "config", local_files_only=True)
    made = type(transformers.AutoModelForCausalLM.from_config(config))
    model = torch_reference.random_model(made, config, seed=1)
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    found = weights.make_policy(tmp_path / "model", "float32", "none")
    assert_same_logits(found, weights.load(tmp_path / "model", found), model)


@pytest.mark.parametrize("tied", [True, False])
def test_the_text_part_of_a_vision_language_model_has_the_same_logits(tmp_path, tied):
    """As transformers saves it: prefixed names, a vision tower, tied by the outer config only."""
    text = {
        **dataclasses.asdict(HYBRID), "layer_types": list(HYBRID.kinds),
        "tie_word_embeddings": False, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
            "mrope_section": [1, 1, 0], "mrope_interleaved": True}}
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32,
              "out_hidden_size": 32, "num_position_embeddings": 16}
    config = transformers.Qwen3_5Config(
        text_config=text, vision_config=vision, tie_word_embeddings=tied)
    model = torch_reference.random_model(
        transformers.Qwen3_5ForConditionalGeneration, config, seed=1)
    model.save_pretrained(tmp_path)
    policy = weights.make_policy(tmp_path, "float32", "none")
    assert policy.config.tie_word_embeddings == tied
    assert_same_logits(policy, weights.load(tmp_path, policy), model)
