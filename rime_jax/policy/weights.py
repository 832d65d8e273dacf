"""Model directories in Hugging Face layout: config.json, *.safetensors, tokenizer files."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from rime_jax.policy import qwen3

ASSETS = pathlib.Path(__file__).parent.parent / "assets"

# Ours → (Hugging Face's name, whether torch's [out, in] is our transposed [in, out]).
_LAYER_NAMES = {
    "attn_norm": ("input_layernorm", False),
    "mlp_norm": ("post_attention_layernorm", False),
    "q_norm": ("self_attn.q_norm", False),
    "k_norm": ("self_attn.k_norm", False),
    "q": ("self_attn.q_proj", True),
    "k": ("self_attn.k_proj", True),
    "v": ("self_attn.v_proj", True),
    "o": ("self_attn.o_proj", True),
    "gate": ("mlp.gate_proj", True),
    "up": ("mlp.up_proj", True),
    "down": ("mlp.down_proj", True),
}
_TOP_NAMES = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
}

# Fields of config.json that select variants of Qwen3 → the one that qwen3.py computes.
_PLAIN = {
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "rope_type": "default",
}


class ModelError(ValueError):
    """A model directory that cannot be used; the message names the file and the remedy."""


def resolve(path: str) -> pathlib.Path:
    """The directory of a model: a path, or the name of a model shipped with the package.

    Raises:
      ModelError: there is no such directory.
    """
    for candidate in (pathlib.Path(path), ASSETS / path):
        if (candidate / "config.json").is_file():
            return candidate
    shipped = sorted(p.name for p in ASSETS.glob("*") if (p / "config.json").is_file())
    raise ModelError(
        f"model.path = {path!r}: no directory with a config.json, and not one of the shipped "
        f"models {shipped}"
    )


def read_config(directory: pathlib.Path) -> qwen3.Qwen3Config:
    """The sizes in a config.json.

    Raises:
      ModelError: another architecture, a variant of Qwen3 that `qwen3.py` does not compute, or a
        field that is missing.
    """
    file = directory / "config.json"
    fields = json.loads(file.read_text())
    if fields.get("model_type") != "qwen3":
        raise ModelError(f"{file}: model_type {fields.get('model_type')!r}; this version knows "
                         "'qwen3'")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    known = {**fields, **rope, "rope_type": rope.get("rope_type", rope.get("type"))}
    for name, plain in _PLAIN.items():
        if known.get(name) not in (None, plain):
            raise ModelError(f"{file}: {name} = {known[name]!r} is not implemented; use a model "
                             f"with {plain!r}")
    names = [f.name for f in dataclasses.fields(qwen3.Qwen3Config)]
    try:
        return qwen3.Qwen3Config(**{n: known[n] for n in names})
    except KeyError as missing:
        raise ModelError(f"{file}: field {missing} is missing") from None


def load(directory: pathlib.Path, config: qwen3.Qwen3Config) -> qwen3.Params:
    """Parameters as float32 numpy arrays, layers stacked.

    Raises:
      ModelError: names the tensor that is missing, unexpected or of another shape.
    """
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safetensors.safe_open(file, framework="np") as shard:
            tensors.update({name: shard.get_tensor(name) for name in shard.keys()})
    shapes = qwen3.Qwen3(config).shapes()

    def take(name: str, shape: tuple[int, ...], transpose: bool) -> np.ndarray:
        if name not in tensors:
            raise ModelError(f"{directory}: tensor {name} is missing from the *.safetensors files")
        array = np.asarray(tensors.pop(name), np.float32)
        array = array.T if transpose else array
        if array.shape != shape:
            raise ModelError(f"{directory}: tensor {name} has shape {array.shape}, config.json "
                             f"asks for {shape}")
        return array

    params: dict[str, Any] = {
        name: take(_TOP_NAMES[name], shapes[name].shape, False)
        for name in shapes if name != "layers"
    }
    params["layers"] = {
        name: np.stack([
            take(f"model.layers.{i}.{theirs}.weight", shapes["layers"][name].shape[1:], transpose)
            for i in range(config.num_hidden_layers)
        ])
        for name, (theirs, transpose) in _LAYER_NAMES.items()
    }
    tensors.pop(_TOP_NAMES["head"], None)  # tied models may carry a copy
    if tensors:
        raise ModelError(f"{directory}: unexpected tensors {sorted(tensors)[:4]}")
    return params


def save(
    directory: pathlib.Path, config: qwen3.Qwen3Config, params: qwen3.Params, tokenizer: Any
) -> None:
    """Writes a model directory that transformers and vLLM load."""
    directory.mkdir(parents=True, exist_ok=True)
    host = jax.tree.map(lambda a: np.asarray(jax.device_get(a), np.float32), params)
    tensors = {_TOP_NAMES[name]: host[name] for name in host if name != "layers"}
    for name, (theirs, transpose) in _LAYER_NAMES.items():
        for i, array in enumerate(host["layers"][name]):
            tensors[f"model.layers.{i}.{theirs}.weight"] = np.ascontiguousarray(
                array.T if transpose else array
            )
    temporary = directory / "model.safetensors.tmp"
    safetensors.numpy.save_file(tensors, temporary, metadata={"format": "pt"})
    temporary.rename(directory / "model.safetensors")
    fields = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **dataclasses.asdict(config),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
    }
    (directory / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    tokenizer.save_pretrained(directory)


def load_tokenizer(directory: pathlib.Path) -> Any:
    """The transformers tokenizer of a model directory; no network is asked."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)


def make_policy(directory: pathlib.Path, dtype: str, remat: str) -> qwen3.Qwen3:
    """The pure functions of the model in a directory."""
    return qwen3.Qwen3(read_config(directory), jnp.dtype(dtype), remat)
