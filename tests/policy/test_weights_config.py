"""config.json of every family: both generations' forms read, variants refused, exports readable."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import transformers

from rime_jax.policy import layers, qwen3, qwen3_5, rope, weights, words

TOKENIZER = words.word_tokenizer([f"w{i}" for i in range(18)])
QWEN3 = {
    "model_type": "qwen3", "vocab_size": 24, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False,
    "use_sliding_window": False, "sliding_window": None, "max_window_layers": 28,
    "max_position_embeddings": 40960, "rope_scaling": None, "rope_theta": 1000000,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}
LLAMA = {
    "model_type": "llama", "vocab_size": 24, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "mlp_bias": False,
}
LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
          "original_max_position_embeddings": 8192, "rope_type": "llama3"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
HYBRID = {
    "model_type": "qwen3_5_text", "vocab_size": 24, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    "rms_norm_eps": 1e-6, "attn_output_gate": True, "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1, "max_position_embeddings": 262144, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10], "mrope_interleaved": True},
}
VISION = {"model_type": "qwen3_5", "text_config": HYBRID, "vision_config": {"depth": 2}}


def read(directory, fields):
    (directory / "config.json").write_text(json.dumps(fields))
    return weights.make_policy(directory, "float32", "none")


def test_a_published_qwen3_config_is_read(tmp_path):
    policy = read(tmp_path, QWEN3)
    assert policy == qwen3.Qwen3(qwen3.Qwen3Config(
        vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-5,
        rope_theta=1e6, tie_word_embeddings=True, max_position_embeddings=40960))


@pytest.mark.parametrize("more", [{}, {"attention_factor": 1.2, "truncate": False}])
def test_a_qwen3_for_long_contexts_is_read_and_written(tmp_path, more):
    policy = read(tmp_path, QWEN3 | {"rope_scaling": YARN | more})
    assert policy.config.rope_scaling == rope.YarnScaling(4.0, 32768, **more)
    weights.save(tmp_path / "out", policy, policy.init(jax.random.key(0)), TOKENIZER)
    assert weights.make_policy(tmp_path / "out", "float32", "none") == policy
    written = json.loads((tmp_path / "out" / "config.json").read_text())["rope_parameters"]
    assert written.items() >= (YARN | more).items() and None not in written.values()


def test_an_early_llama_config_has_its_classes_defaults(tmp_path):
    config = read(tmp_path, LLAMA).config
    assert not config.qk_norm and not config.tie_word_embeddings and config.rope_scaling is None
    assert (config.num_key_value_heads, config.head_dim, config.rope_theta) == (4, 4, 1e4)


@pytest.mark.parametrize("form", [
    {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    {"rope_parameters": {"rope_theta": 5e5} | LLAMA3},
])
def test_scalings_are_read_from_files_of_both_generations(tmp_path, form):
    config = read(tmp_path, LLAMA | form).config
    assert config.rope_theta == 5e5
    assert config.rope_scaling == rope.Llama3Scaling(32.0, 1.0, 4.0, 8192)
    linear = read(tmp_path, QWEN3 | {"rope_scaling": {"type": "linear", "factor": 2.0}}).config
    assert linear.rope_scaling == rope.LinearScaling(2.0) and linear.rope_theta == 1e6


def test_llama3_scaling_is_that_of_its_paper():
    """By wavelengths, feature by feature, in plain float64."""
    theta, half = 5e5, 32
    frequencies = np.asarray(layers.rotary_frequencies(2 * half, theta))
    expected = []
    for j in range(half):
        wavelength = 2 * np.pi * theta ** (j / half)
        if wavelength < 8192 / 4.0:
            expected.append(theta ** (-j / half))
        elif wavelength > 8192 / 1.0:
            expected.append(theta ** (-j / half) / 32)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected.append(((1 - smooth) / 32 + smooth) * theta ** (-j / half))
    found = rope.Llama3Scaling(32.0, 1.0, 4.0, 8192).scale(frequencies, theta)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_linear_scaling_divides_positions():
    config = qwen3.Qwen3Config(24, 16, 32, 2, 4, 2, 8)
    plain = qwen3.Qwen3(config)
    scaled = qwen3.Qwen3(dataclasses.replace(config, rope_scaling=rope.LinearScaling(4.0)))
    params = jax.tree.map(lambda a: 3 * a, plain.init(jax.random.key(0)))
    tokens = np.arange(12).reshape(1, 12) % 24
    positions = np.arange(12).reshape(1, 12)
    ones = np.ones_like(tokens)
    np.testing.assert_allclose(scaled.forward(params, tokens, 4 * positions, ones),
                               plain.forward(params, tokens, positions, ones), atol=1e-5)


def test_qwen3_5_is_read_alone_and_inside_a_vision_language_config(tmp_path):
    alone = read(tmp_path, HYBRID)
    assert isinstance(alone, qwen3_5.Qwen3_5) and not alone.config.tie_word_embeddings
    assert alone.config.kinds == ("linear_attention",) * 3 + ("full_attention",)
    assert (alone.config.rope_theta, alone.config.partial_rotary_factor) == (1e7, 0.25)
    assert alone.config.max_position_embeddings == 262144
    assert read(tmp_path, VISION) == alone


@pytest.mark.parametrize("outer, inner, tied", [
    (None, None, False), (None, True, True), (True, None, True), (True, True, True),
    # transformers writes the inner one as false for a model that it ties, and obeys the outer one.
    (True, False, True), (False, True, False)])
def test_a_vision_language_model_is_tied_as_its_outer_config_says(tmp_path, outer, inner, tied):
    name = "tie_word_embeddings"
    fields = VISION | {name: outer, "text_config": HYBRID | {name: inner}}
    assert read(tmp_path, fields).config.tie_word_embeddings is tied


@pytest.mark.parametrize("fields, message", [
    (QWEN3 | {"model_type": "gpt2"}, r"model_type 'gpt2'; .*'llama', 'qwen3', 'qwen3_5'"),
    (QWEN3 | {"head_dim": None}, "field 'head_dim' is missing"),
    (QWEN3 | {"rope_theta": None}, "field 'rope_theta' is missing"),
    (QWEN3 | {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}},
     r"rope_type = 'longrope' is not implemented.*\['linear', 'llama3', 'yarn'\]"),
    (QWEN3 | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
     "field 'original_max_position_embeddings' is missing"),
    (QWEN3 | {"rope_scaling": YARN | {"beta_fast": 0.5}}, "beta_fast = 0.5 must be above"),
    (QWEN3 | {"rope_scaling": YARN | {"attention_factor": -1}}, "attention_factor = -1 must be"),
    (QWEN3 | {"rope_scaling": YARN | {"mscale": 1.0}}, "mscale is not implemented"),
    (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type = 'dynamic'"),
    (LLAMA | {"rope_scaling": {"type": "linear"}}, "field 'factor' is missing"),
    (LLAMA | {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor = 1.0 must"),
    (QWEN3 | {"use_sliding_window": True}, "use_sliding_window = True is not implemented"),
    (QWEN3 | {"layer_types": ["full_attention", "sliding_attention"]},
     "layer_types = 'sliding_attention'"),
    (QWEN3 | {"hidden_act": "gelu"}, "hidden_act = 'gelu' .*'silu'"),
    (QWEN3 | {"attention_bias": True}, "attention_bias = True"),
    (LLAMA | {"mlp_bias": True}, "mlp_bias = True"),
    (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    (QWEN3 | {"quantization_config": {"bits": 4}}, "quantization_config.*bfloat16"),
    (QWEN3 | {"num_key_value_heads": 3}, "num_attention_heads = 4 is no multiple"),
    (HYBRID | {"attn_output_gate": False}, "attn_output_gate = False"),
    (HYBRID | {"rope_parameters": HYBRID["rope_parameters"] | {"rope_type": "yarn"}},
     "rope_type = 'yarn'"),
    (HYBRID | {"linear_num_key_heads": None}, "field 'linear_num_key_heads' is missing"),
    (VISION | {"text_config": None}, "field 'text_config' is missing"),
    (VISION | {"quantization_config": {"bits": 4}}, "quantization_config"),
    # Values of the wrong kind.
    (QWEN3 | {"model_type": ["qwen3"]}, r"model_type \['qwen3'\]; this version knows"),
    (QWEN3 | {"vocab_size": "24"}, "vocab_size = '24' must be a positive int"),
    (QWEN3 | {"rope_theta": float("inf")}, "rope_theta = inf must be a positive float"),
    (QWEN3 | {"rms_norm_eps": float("nan")}, "rms_norm_eps = nan must be"),
    (QWEN3 | {"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false' must be true or fal"),
    (HYBRID | {"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false' must be true or fa"),
    (QWEN3 | {"layer_types": 5}, "a field has a value of the wrong kind"),
    (QWEN3 | {"rope_scaling": "linear"}, "a field has a value of the wrong kind"),
    (QWEN3 | {"rope_scaling": {"type": "linear", "factor": "2"}}, "factor = '2' must be"),
    (QWEN3 | {"rope_scaling": {"type": "linear", "factor": 0}}, "factor = 0 must be a positive"),
    (LLAMA | {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": "64"}},
     "original_max_position_embeddings = '64' must be a positive int"),
])
def test_what_is_not_computed_is_refused_by_name(tmp_path, fields, message):
    with pytest.raises(weights.ModelError, match=f"config.json: .*{message}"):
        read(tmp_path, fields)


@pytest.mark.parametrize("content, message", [
    (b"", "cannot be read as JSON"), (b"{", "cannot be read as JSON"),
    (b'{"model_type": "\xff"}', "cannot be read as JSON"),
    (b"[" * 100_000, "cannot be read as JSON"), (b"[1]", "holds no JSON object"),
    (b"null", "holds no JSON object")])
def test_a_damaged_config_is_named(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(weights.ModelError, match=f"config.json {message}.*copy it again"):
        weights.make_policy(tmp_path, "float32", "none")


WRITTEN = {
    "qwen3": (QWEN3, transformers.Qwen3Config),
    "qwen3 linear": (QWEN3 | {"rope_scaling": {"type": "linear", "factor": 2.0}},
                     transformers.Qwen3Config),
    "llama": (LLAMA | {"rope_theta": 5e5, "rope_scaling": LLAMA3,
                       "max_position_embeddings": 131072}, transformers.LlamaConfig),
    "qwen3_5": (HYBRID | {"tie_word_embeddings": True}, transformers.Qwen3_5TextConfig),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_transformers_reads_an_exported_config_and_writes_one_that_is_read(tmp_path, name):
    fields, made = WRITTEN[name]
    policy = read(tmp_path, fields)
    weights.save(tmp_path / "out", policy, policy.init(jax.random.key(0)), TOKENIZER)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path / "out", local_files_only=True)
    assert type(theirs) is made
    assert theirs.architectures == [made.__name__.replace("TextConfig", "Config").replace(
        "Config", "ForCausalLM")]
    assert theirs.eos_token_id == TOKENIZER.eos_token_id
    assert theirs.max_position_embeddings == policy.config.max_position_embeddings
    for field in ("head_dim", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"):
        assert getattr(theirs, field) == getattr(policy.config, field)
    theirs.save_pretrained(tmp_path / "theirs")
    again = weights.make_policy(tmp_path / "theirs", "float32", "none")
    # An export spells the layer types out.
    if name == "qwen3_5":
        policy = dataclasses.replace(policy, config=dataclasses.replace(
            policy.config, layer_types=policy.config.kinds))
    assert again == policy
