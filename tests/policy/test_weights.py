"""Model directories: exact round trips, sharded loads, errors that name the tensor."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import transformers
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy import qwen3, qwen3_5, rope, tensor_files, weights, words

DECODER = qwen3.Qwen3Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=5e4, rms_norm_eps=1e-5,
    tie_word_embeddings=False)
HYBRID = qwen3_5.Qwen3_5Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=5,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=4,
    layer_types=("full_attention", "linear_attention", "linear_attention", "full_attention",
                 "linear_attention"), partial_rotary_factor=0.5)
LLAMA = dataclasses.replace(
    DECODER, qk_norm=False, rope_scaling=rope.Llama3Scaling(8.0, 1.0, 4.0, 64))
UNTIED = {"qwen3": qwen3.Qwen3(DECODER), "llama": qwen3.Qwen3(LLAMA),
          "qwen3_5": qwen3_5.Qwen3_5(HYBRID)}
POLICIES = UNTIED | {
    f"tied {name}": dataclasses.replace(
        policy, config=dataclasses.replace(policy.config, tie_word_embeddings=True))
    for name, policy in UNTIED.items()
}
QWEN3 = POLICIES["qwen3"]
TOKENIZER = words.word_tokenizer([f"w{i}" for i in range(18)])


def random_params(policy):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: rng.normal(size=a.shape).astype(np.float32), policy.shapes())


def saved(directory, policy=QWEN3, **options):
    params = random_params(policy)
    weights.save(directory, policy, params, TOKENIZER, **options)
    return params


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def edit_tensors(directory, edit):
    file = directory / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    edit(tensors)
    safetensors.numpy.save_file(tensors, file)


@pytest.mark.parametrize("name", POLICIES)
def test_a_saved_model_is_loaded_exactly(tmp_path, name):
    policy = POLICIES[name]
    params = saved(tmp_path, policy)
    assert weights.make_policy(tmp_path, "float32", "none") == policy
    weights.check(tmp_path, policy)
    loaded = weights.load(tmp_path, policy)
    assert_equal(loaded, params)
    assert all(a.dtype == jnp.float32 for a in jax.tree.leaves(loaded))


def test_dtype_and_remat_are_the_callers(tmp_path):
    saved(tmp_path)
    assert weights.make_policy(tmp_path, "bfloat16", "layer") == dataclasses.replace(
        QWEN3, dtype=jnp.dtype("bfloat16"), remat="layer")


@pytest.mark.parametrize("name", UNTIED)
@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 8, 1), (1, 1, 8)])
def test_a_sharded_load_is_the_plain_one(tmp_path, name, sizes):
    policy = POLICIES[name]
    params = saved(tmp_path, policy)
    options = dict(zip(("mesh_data", "mesh_fsdp", "mesh_tensor"), sizes, strict=True))
    mesh = mesh_lib.make_mesh(options, jax.devices())
    places = mesh_lib.shardings(mesh, policy.logical_axes(), policy.shapes())
    loaded = weights.load(tmp_path, policy, places)
    assert_equal(loaded, params)
    assert jax.tree.map(lambda a: a.sharding, loaded) == places
    # And back, from the shards.
    weights.save(tmp_path / "again", policy, loaded, TOKENIZER, stop_ids=(3, 1))
    assert weights.ends_of_text(tmp_path / "again") == (1, 3)
    assert_equal(weights.load(tmp_path / "again", policy), params)


def test_layers_may_be_divided_over_devices(tmp_path):
    params = saved(tmp_path)
    place = NamedSharding(Mesh(jax.devices()[:2], "x"), PartitionSpec("x"))
    loaded = weights.load(tmp_path, QWEN3, jax.tree.map(lambda _: place, params))
    assert_equal(loaded, params)
    assert loaded["layers"]["q"].sharding == place


def test_each_device_reads_only_its_slice(tmp_path, monkeypatch):
    params = saved(tmp_path)
    place = NamedSharding(Mesh(jax.devices()[:2], "x"), PartitionSpec(None, None, "x"))
    read, sizes = tensor_files.Stored.read, {}

    def watched(tensor, index):
        found = read(tensor, index)
        sizes.setdefault(tensor.name, []).append(found.shape)
        return found

    monkeypatch.setattr(tensor_files.Stored, "read", watched)
    whole = NamedSharding(place.mesh, PartitionSpec())
    places = jax.tree.map(lambda _: whole, params)
    places["layers"]["up"] = place
    weights.load(tmp_path, QWEN3, places)
    # torch's [out, in]; ours is divided along out.
    assert sizes["model.layers.1.mlp.up_proj.weight"] == [(16, 16), (16, 16)]
    assert sizes["model.layers.1.mlp.gate_proj.weight"][0] == (32, 16)


def test_loaded_parameters_can_be_consumed(tmp_path):
    params = saved(tmp_path)
    double = jax.jit(lambda tree: jax.tree.map(lambda a: 2 * a, tree), donate_argnums=0)
    assert_equal(double(weights.load(tmp_path, QWEN3)), jax.tree.map(lambda a: 2 * a, params))
    assert_equal(weights.load(tmp_path, QWEN3), params)


@pytest.mark.parametrize("limit, files", [(1, 25), (4000, None), (10**9, 1)])
def test_files_hold_at_most_their_limit_and_are_found_by_the_index(tmp_path, limit, files):
    params = saved(tmp_path, max_shard_bytes=limit)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert files is None or len(shards) == files
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (len(shards) > 1)
    if index.exists():
        content = json.loads(index.read_text())
        for shard in shards:
            tensors = safetensors.numpy.load_file(shard)
            assert {n for n, file in content["weight_map"].items() if file == shard.name} == set(
                tensors)
            assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= limit
        assert content["metadata"]["total_size"] == sum(a.nbytes for a in jax.tree.leaves(params))
        # A file that the index does not name is not the model's.
        safetensors.numpy.save_file({"x": np.zeros(2)}, tmp_path / "other.safetensors")
    assert_equal(weights.load(tmp_path, QWEN3), params)


def test_several_files_need_no_index(tmp_path):
    params = saved(tmp_path, max_shard_bytes=4000)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert_equal(weights.load(tmp_path, QWEN3), params)


@pytest.mark.parametrize("stored", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("wanted", [jnp.float32, jnp.bfloat16])
def test_any_stored_precision_becomes_the_wanted_one(tmp_path, stored, wanted):
    params = saved(tmp_path)
    edit_tensors(tmp_path, lambda t: t.update({n: a.astype(stored) for n, a in t.items()}))
    loaded = weights.load(tmp_path, QWEN3, dtype=wanted)
    assert all(a.dtype == wanted for a in jax.tree.leaves(loaded))
    assert_equal(loaded, jax.tree.map(lambda a: a.astype(stored).astype(wanted), params))


@pytest.mark.parametrize("name", UNTIED)
def test_a_bfloat16_export_is_rounded_once(tmp_path, name):
    params = saved(tmp_path, POLICIES[name], dtype="bfloat16")
    for tensor in safetensors.numpy.load_file(tmp_path / "model.safetensors").values():
        assert tensor.dtype == ml_dtypes.bfloat16
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    expected = jax.tree.map(lambda a: a.astype(ml_dtypes.bfloat16).astype(np.float32), params)
    assert_equal(weights.load(tmp_path, POLICIES[name]), expected)


def test_saving_again_replaces_the_model_and_keeps_other_files(tmp_path):
    params = saved(tmp_path, max_shard_bytes=4000)
    (tmp_path / "README.md").write_text("mine")
    doubled = jax.tree.map(lambda a: 2 * a, params)
    weights.save(tmp_path, QWEN3, doubled, TOKENIZER)
    assert_equal(weights.load(tmp_path, QWEN3), doubled)
    assert [p.name for p in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_file_of_the_models_name_is_kept(tmp_path):
    file = tmp_path / "model"
    file.write_text("mine")
    with pytest.raises(NotADirectoryError, match="a file has the name of the model directory"):
        saved(file)
    assert file.read_text() == "mine" and list(tmp_path.iterdir()) == [file]


def test_a_directory_of_links_is_loaded_and_saved_behind_its_link(tmp_path):
    """As hubs lay out their caches."""
    params = saved(tmp_path / "blobs")
    (tmp_path / "model").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    (tmp_path / "link").symlink_to(tmp_path / "model")
    assert_equal(weights.load(tmp_path / "link", QWEN3), params)
    saved(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and not (tmp_path / "model/config.json").is_symlink()
    assert_equal(weights.load(tmp_path / "blobs", QWEN3), params)


def test_a_save_that_fails_leaves_the_earlier_model(tmp_path):
    params = saved(tmp_path / "model")
    broken = jax.tree.map(lambda a: a, params)
    del broken["final_norm"]
    with pytest.raises(KeyError):
        weights.save(tmp_path / "model", QWEN3, broken, TOKENIZER)
    assert_equal(weights.load(tmp_path / "model", QWEN3), params)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


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


def test_delta_layers_have_all_queries_then_keys_then_values_in_files(tmp_path):
    policy, c = POLICIES["qwen3_5"], HYBRID
    ours = saved(tmp_path, policy)["linear_attention"]
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    J, M, E = c.linear_num_key_heads, c.linear_key_head_dim, c.linear_value_head_dim
    group = c.linear_num_value_heads // J
    for name, theirs in (("qkv", "in_proj_qkv"), ("conv", "conv1d")):
        for place, layer in enumerate((1, 2, 4)):
            x = tensors[f"model.layers.{layer}.linear_attn.{theirs}.weight"]
            x = x[:, 0] if name == "conv" else x
            heads = ours[name][place].T.reshape(J, -1, x.shape[1])
            q, k, v = x[: J * M], x[J * M : 2 * J * M], x[2 * J * M :]
            for j in range(J):
                np.testing.assert_array_equal(heads[j, :M], q[j * M : (j + 1) * M])
                np.testing.assert_array_equal(heads[j, M : 2 * M], k[j * M : (j + 1) * M])
                for g in range(group):
                    h = j * group + g
                    np.testing.assert_array_equal(
                        heads[j, 2 * M + g * E :][:E], v[h * E : (h + 1) * E])


def test_a_tied_model_saves_no_head_and_ignores_a_copy_of_it(tmp_path):
    policy = POLICIES["tied qwen3"]
    params = saved(tmp_path, policy)
    assert "lm_head.weight" not in safetensors.numpy.load_file(tmp_path / "model.safetensors")
    edit_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    assert_equal(weights.load(tmp_path, policy), params)


@pytest.mark.parametrize("edit", [lambda a: a + (np.arange(24) == 23)[:, None], lambda a: a[:8]])
def test_a_head_that_is_no_copy_contradicts_a_tied_config(tmp_path, monkeypatch, edit):
    monkeypatch.setattr(weights, "_COMPARED_ROWS", 5)
    policy = POLICIES["tied qwen3"]
    saved(tmp_path, policy)
    edit_tensors(tmp_path, lambda t: t.update({
        "lm_head.weight": edit(t["model.embed_tokens.weight"]).astype(np.float32)}))
    for use in (weights.check, weights.load):
        with pytest.raises(weights.ModelError, match="tie_word_embeddings, but lm_head.weight is "
                                                     "not model.embed_tokens.weight; set it to"):
            use(tmp_path, policy)


def test_one_parameter_under_two_names_is_refused(tmp_path):
    policy = POLICIES["qwen3_5"]
    saved(tmp_path, policy)
    norm = "model.norm.weight"
    other = norm.replace("model.", "model.language_model.")
    edit_tensors(tmp_path, lambda t: t.update({other: 2 * t[norm]}))
    with pytest.raises(weights.ModelError, match="are the same parameter; remove one"):
        weights.check(tmp_path, policy)


@pytest.mark.parametrize("index", [True, False])
def test_one_tensor_in_two_files_is_refused(tmp_path, index):
    saved(tmp_path, max_shard_bytes=4000)
    first, *_, last = sorted(tmp_path.glob("*.safetensors"))
    tensors = safetensors.numpy.load_file(first)
    safetensors.numpy.save_file(safetensors.numpy.load_file(last) | {
        name: 2 * tensor for name, tensor in tensors.items()}, last)
    if not index:
        (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(weights.ModelError, match=f"is in .*{first.name} and in .*{last.name}"):
        weights.check(tmp_path, QWEN3)


@pytest.mark.parametrize("content", [
    b"", b"[1]", b"\xff\xfe", b'{"weight_map": null}', b'{"weight_map": [1]}',
    b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": 1, "b": "x"}}'])
def test_an_index_of_the_wrong_form_is_named(tmp_path, content):
    saved(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(weights.ModelError, match="index.json has no weight_map .*copy it again"):
        weights.check(tmp_path, QWEN3)


@pytest.mark.parametrize("name", [
    "model.rotary_emb.inv_freq", "model.layers.1.self_attn.rotary_emb.inv_freq"])
def test_saved_rotary_frequencies_are_not_needed(tmp_path, name):
    params = saved(tmp_path)
    edit_tensors(tmp_path, lambda t: t.update({name: np.ones(4, np.float32)}))
    assert_equal(weights.load(tmp_path, QWEN3), params)


def test_the_text_part_of_a_vision_language_model_is_loaded(tmp_path, caplog):
    policy = POLICIES["qwen3_5"]
    params = saved(tmp_path, policy)

    def wrap(tensors):
        for name in [n for n in tensors if n.startswith("model.")]:
            tensors["model.language_model." + name.removeprefix("model.")] = tensors.pop(name)
        tensors |= {"model.visual.patch_embed.proj.weight": np.zeros((2, 2), np.float32),
                    "mtp.fc.weight": np.zeros((2, 2), np.float32)}

    edit_tensors(tmp_path, wrap)
    for _ in range(2):
        assert_equal(weights.load(tmp_path, policy), params)
    assert caplog.text.count("2 tensor(s)") == 1
    assert "mtp.fc.weight" in caplog.text and "model.visual.patch_embed" in caplog.text


NAME = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize("edit, message", [
    (lambda t: t.pop(NAME), rf"1 tensor\(s\) \({NAME}\) is missing"),
    (lambda t: t.pop("lm_head.weight"), "lm_head.weight.* is missing"),
    (lambda t: t.update({NAME: t[NAME][:8]}),
     rf"{NAME} has shape \(8, 16\), config.json asks for \(16, 16\)\) is of another shape"),
    (lambda t: t.update({NAME.replace("weight", "bias"): t[NAME][0]}),
     rf"\({NAME.replace('weight', 'bias')}\) is unexpected"),
    (lambda t: t.update({NAME.replace("1", "2"): t[NAME]}), "layers.2.* is unexpected"),
    (lambda t: t.update({n.replace("layers.0", "layers.7"): t.pop(n)
                         for n in list(t) if "layers.0" in n}),
     r"11 tensor\(s\) \(.* and 7 more\) are missing; 11 tensor\(s\) .* are unexpected"),
    (lambda t: t.update({NAME: t[NAME].astype(np.int8)}), f"{NAME} is I8; only .*BF16"),
])
def test_a_wrong_tensor_is_named(tmp_path, edit, message):
    saved(tmp_path)
    edit_tensors(tmp_path, edit)
    for use in (weights.check, weights.load):
        with pytest.raises(weights.ModelError, match=message):
            use(tmp_path, QWEN3)


def test_wrong_files_are_named(tmp_path):
    saved(tmp_path, max_shard_bytes=4000)
    file = sorted(tmp_path.glob("*.safetensors"))[0]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(weights.ModelError, match=f"{file.name} cannot be read.*copy it again"):
        weights.check(tmp_path, QWEN3)
    file.unlink()
    with pytest.raises(weights.ModelError, match=rf"index.json names \['{file.name}'\].*copy them"):
        weights.check(tmp_path, QWEN3)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(weights.ModelError, match="index.json has no weight_map"):
        weights.check(tmp_path, QWEN3)
    for rest in tmp_path.glob("*.safetensors*"):
        rest.unlink()
    with pytest.raises(weights.ModelError, match=r"no \*.safetensors file.*save_pretrained"):
        weights.check(tmp_path, QWEN3)


def test_the_tokenizer_comes_back(tmp_path):
    saved(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert tokenizer("w3 w17 .").input_ids == TOKENIZER("w3 w17 .").input_ids
    assert tokenizer.chat_template == TOKENIZER.chat_template
    assert weights.load_tokenizer(tmp_path).get_vocab() == TOKENIZER.get_vocab()


def test_a_path_without_a_model_is_named_with_the_shipped_models(tmp_path):
    with pytest.raises(weights.ModelError, match="no directory with a config.json.*shipped"):
        weights.resolve(str(tmp_path))
    saved(tmp_path)
    assert weights.resolve(str(tmp_path)) == tmp_path


def test_a_path_may_be_relative_or_start_at_home(tmp_path, monkeypatch):
    saved(tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert weights.resolve("~/model") == tmp_path / "model"
    monkeypatch.chdir(tmp_path / "model")
    assert weights.resolve(".").samefile(tmp_path / "model")
    with pytest.raises(weights.ModelError, match="'~nobody-of-this-name'.*nothing is downloaded"):
        weights.resolve("~nobody-of-this-name")
