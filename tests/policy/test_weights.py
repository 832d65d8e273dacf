"""Model directories: exact round trips, errors naming the tensor, agreement with transformers."""

import dataclasses
import json

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import transformers

from rime_jax.policy import qwen3, weights, words

TIED = qwen3.Qwen3Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=5e4, rms_norm_eps=1e-5)
UNTIED = dataclasses.replace(TIED, tie_word_embeddings=False)
TOKENIZER = words.word_tokenizer([f"w{i}" for i in range(18)])


def random_params(config):
    params = qwen3.Qwen3(config).init(jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: np.asarray(a) + rng.normal(size=a.shape).astype(np.float32),
                        params)


def saved(directory, config=UNTIED):
    params = random_params(config)
    weights.save(directory, config, params, TOKENIZER)
    return params


def edit_tensors(directory, edit):
    file = directory / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    edit(tensors)
    safetensors.numpy.save_file(tensors, file)


def edit_config(directory, **changes):
    """A change to None removes the field."""
    file = directory / "config.json"
    fields = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_a_saved_model_is_loaded_exactly(tmp_path, config):
    params = saved(tmp_path, config)
    assert weights.read_config(tmp_path) == config
    jax.tree.map(np.testing.assert_array_equal, weights.load(tmp_path, config), params)
    assert weights.make_policy(tmp_path, "bfloat16", "layer").config == config


def test_saving_again_replaces_the_model(tmp_path):
    params = saved(tmp_path)
    doubled = jax.tree.map(lambda a: 2 * a, params)
    weights.save(tmp_path, UNTIED, doubled, TOKENIZER)
    jax.tree.map(np.testing.assert_array_equal, weights.load(tmp_path, UNTIED), doubled)


def test_tensors_have_the_names_and_shapes_of_qwen3(tmp_path):
    saved(tmp_path)
    layer = {
        "input_layernorm": (16,), "post_attention_layernorm": (16,),
        "self_attn.q_norm": (8,), "self_attn.k_norm": (8,),
        # torch keeps a linear layer as [out, in].
        "self_attn.q_proj": (32, 16), "self_attn.k_proj": (16, 16), "self_attn.v_proj": (16, 16),
        "self_attn.o_proj": (16, 32),
        "mlp.gate_proj": (32, 16), "mlp.up_proj": (32, 16), "mlp.down_proj": (16, 32),
    }
    expected = {f"model.layers.{i}.{n}.weight": s for i in range(2) for n, s in layer.items()}
    expected |= {"model.embed_tokens.weight": (24, 16), "model.norm.weight": (16,),
                 "lm_head.weight": (24, 16)}
    found = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert {n: a.shape for n, a in found.items()} == expected


def test_a_tied_model_saves_no_head_and_ignores_a_copy_of_it(tmp_path):
    params = saved(tmp_path, TIED)
    assert "lm_head.weight" not in safetensors.numpy.load_file(tmp_path / "model.safetensors")
    edit_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    jax.tree.map(np.testing.assert_array_equal, weights.load(tmp_path, TIED), params)


def test_bfloat16_in_several_files_is_loaded_as_float32(tmp_path):
    params = saved(tmp_path)
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    for i in range(2):
        shard = {n: tensors[n].astype(ml_dtypes.bfloat16) for n in sorted(tensors)[i::2]}
        safetensors.numpy.save_file(shard, tmp_path / f"model-{i + 1:05}-of-00002.safetensors")
    loaded = weights.load(tmp_path, UNTIED)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, b.astype(ml_dtypes.bfloat16).astype(np.float32))


NAME = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize("edit, message", [
    (lambda t: t.pop(NAME), f"{NAME} is missing"),
    (lambda t: t.pop("lm_head.weight"), "lm_head.weight is missing"),
    (lambda t: t.update({NAME: t[NAME][:8]}), rf"{NAME} has shape \(16, 8\).* \(16, 16\)"),
    (lambda t: t.update({NAME.replace("weight", "bias"): t[NAME][0]}),
     rf"unexpected tensors \['{NAME.replace('weight', 'bias')}'"),
    (lambda t: t.update({NAME.replace("1", "2"): t[NAME]}), "unexpected tensors .*layers.2"),
])
def test_a_wrong_tensor_is_named(tmp_path, edit, message):
    saved(tmp_path)
    edit_tensors(tmp_path, edit)
    with pytest.raises(weights.ModelError, match=message):
        weights.load(tmp_path, UNTIED)


@pytest.mark.parametrize("changes, message", [
    ({"model_type": "llama"}, "model_type 'llama'"),
    ({"head_dim": None}, "'head_dim' is missing"),
    ({"rope_parameters": None, "rope_theta": None}, "'rope_theta' is missing"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "'yarn'"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None}, "'linear'"),
    ({"use_sliding_window": True}, "use_sliding_window"),
    ({"hidden_act": "gelu"}, "hidden_act"),
])
def test_a_config_of_another_architecture_is_refused(tmp_path, changes, message):
    saved(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(weights.ModelError, match=message):
        weights.read_config(tmp_path)


def test_older_configs_keep_rope_theta_at_the_top(tmp_path):
    saved(tmp_path)
    edit_config(tmp_path, rope_parameters=None, rope_theta=123.0, rope_scaling=None)
    assert weights.read_config(tmp_path).rope_theta == 123.0


def test_transformers_reads_the_directory(tmp_path):
    saved(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path, local_files_only=True)
    assert isinstance(config, transformers.Qwen3Config)
    for name, value in dataclasses.asdict(UNTIED).items():
        if name != "rope_theta":
            assert getattr(config, name) == value
    assert config.rope_parameters["rope_theta"] == UNTIED.rope_theta
    assert config.eos_token_id == TOKENIZER.eos_token_id
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert tokenizer("w3 w17 .").input_ids == TOKENIZER("w3 w17 .").input_ids
    assert tokenizer.chat_template == TOKENIZER.chat_template
    assert weights.load_tokenizer(tmp_path).get_vocab() == TOKENIZER.get_vocab()


def test_a_config_written_by_transformers_is_read(tmp_path):
    fields = {n: v for n, v in dataclasses.asdict(UNTIED).items() if n != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": UNTIED.rope_theta}
    transformers.Qwen3Config(**fields, rope_parameters=rope).save_pretrained(tmp_path)
    assert weights.read_config(tmp_path) == UNTIED


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_logits_are_those_of_transformers(tmp_path, config):
    torch = pytest.importorskip("torch")
    params = saved(tmp_path, config)
    model = transformers.Qwen3ForCausalLM.from_pretrained(
        tmp_path, local_files_only=True, dtype=torch.float32, attn_implementation="eager")
    tokens = np.random.default_rng(1).integers(0, 24, (2, 20))
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits.numpy()
    policy = qwen3.Qwen3(config)
    positions = np.tile(np.arange(20), (2, 1))
    hidden = policy.forward(params, tokens, positions, np.ones_like(tokens))
    np.testing.assert_allclose(policy.logits(params, hidden), expected, rtol=1e-4,
                               atol=1e-4 * expected.std())


def test_a_path_without_a_model_is_named_with_the_shipped_models(tmp_path):
    with pytest.raises(weights.ModelError, match="no directory with a config.json.*shipped"):
        weights.resolve(str(tmp_path))
    saved(tmp_path)
    assert weights.resolve(str(tmp_path)) == tmp_path
