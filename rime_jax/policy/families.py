"""Model families by the `model_type` of a config.json: which policy, which sizes, which names.

A variant that a policy does not compute is refused by the name of its field, never ignored.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rime_jax.policy import base, qwen3, qwen3_5, rope
from rime_jax.policy.tensor_files import ModelError


@dataclasses.dataclass(frozen=True)
class Family:
    """One architecture of Hugging Face's.

    Attributes:
      architecture: class name under which transformers and vLLM load an exported model.
      model_type: what an exported config.json says.
      hf_names: our parameter path → (name of its tensor, transform); `{}` is a layer number.
      read: fields of a config.json (no nulls) → the policy's configuration. Raises KeyError with a
        missing field, ValueError for a variant.
      write: configuration → fields of a config.json.
      make: (configuration, dtype of activations, remat, attention) → policy.
      unused: names of tensors that the policy does without.
      prefix: (as in some checkpoints, as in hf_names).
    """

    architecture: str
    model_type: str
    hf_names: Mapping[str, tuple[str, str]]
    read: Callable[[dict[str, Any]], Any]
    write: Callable[[Any], dict[str, Any]]
    make: Callable[[Any, Any, str, str], base.Policy]
    unused: re.Pattern[str]
    prefix: tuple[str, str] = ("", "")

    def canonical(self, name: str) -> str | None:
        """A tensor's name in the form of `hf_names`; None if the policy does without it."""
        if self.unused.match(name):
            return None
        theirs, ours = self.prefix
        return ours + name.removeprefix(theirs) if name.startswith(theirs) else name


def read(file: pathlib.Path) -> tuple[Family, Any]:
    """Family and configuration of a config.json.

    Raises:
      ModelError: no JSON, another architecture, a variant that is not implemented, a missing field.
    """
    try:
        fields = _without_nulls(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}; copy it again") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{file} holds no JSON object; copy it again")
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise ModelError(f"{file}: model_type {kind!r}; this version knows {sorted(_FAMILIES)}")
    try:
        return _FAMILIES[kind], _FAMILIES[kind].read(fields)
    except KeyError as missing:
        raise ModelError(f"{file}: field {missing} is missing; add it") from None
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from error
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ModelError(f"{file}: a field has a value of the wrong kind: {error}") from error


def of(policy: base.Policy) -> Family:
    """The family as which a policy is exported."""
    if isinstance(policy, qwen3_5.Qwen3_5):
        return _FAMILIES["qwen3_5_text"]
    return _FAMILIES["qwen3" if policy.config.qk_norm else "llama"]


def _require(fields: Mapping[str, Any], **plain: Any) -> None:
    """Raises ValueError for a field that is there and is not what the policies compute."""
    for name, value in plain.items():
        if fields.get(name, value) != value:
            raise ValueError(f"{name} = {fields[name]!r} is not implemented; use a model with "
                             f"{value!r}")
    if "quantization_config" in fields:
        raise ValueError("quantization_config: quantised weights are not implemented; use a model "
                         "in bfloat16, float16 or float32")


def _rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary fields of either generation of transformers, `rope_type` and maybe `rope_theta`."""
    given = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    theta = {"rope_theta": fields["rope_theta"]} if "rope_theta" in fields else {}
    found = {**theta, **given}
    found["rope_type"] = found.get("rope_type", found.get("type", "default"))
    return found


def _read_decoder(fields: dict[str, Any], qk_norm: bool) -> qwen3.Qwen3Config:
    turns = _rope(fields)
    _require(fields, hidden_act="silu", attention_bias=False, mlp_bias=False,
             use_sliding_window=False, partial_rotary_factor=1.0)
    _require(turns, partial_rotary_factor=1.0)
    for kind in fields.get("layer_types", ()):
        _require({"layer_types": kind}, layer_types="full_attention")
    heads = fields["num_attention_heads"]
    defaults = {"num_key_value_heads": heads, "tie_word_embeddings": False}
    if not qk_norm:
        # Of Llama's class; older files leave them out.
        defaults |= {"head_dim": fields["hidden_size"] // heads, "rope_theta": 1e4}
    own = {"qk_norm": qk_norm, "rope_scaling": _read_scaling(turns)}
    return _made(qwen3.Qwen3Config, defaults | fields | turns | own,
                 optional=("initializer_range", "max_position_embeddings"))


def _read_qwen3_5(fields: dict[str, Any]) -> qwen3_5.Qwen3_5Config:
    turns = _rope(fields)
    _require(fields, hidden_act="silu", attention_bias=False, attn_output_gate=True,
             mamba_ssm_dtype="float32")
    # Fields of mRoPE may stay: in text it is plain RoPE (qwen3_5.py).
    _require(turns, rope_type="default")
    known = {"tie_word_embeddings": False} | fields | turns
    if "layer_types" in known:
        known["layer_types"] = tuple(known["layer_types"])
    return _made(qwen3_5.Qwen3_5Config, known, optional=(
        "initializer_range", "layer_types", "full_attention_interval", "partial_rotary_factor",
        "max_position_embeddings"))


def _read_vision_language(fields: dict[str, Any]) -> qwen3_5.Qwen3_5Config:
    """The text model inside a config of a model that also sees."""
    _require(fields)
    # Of the two, transformers' vision-language class obeys the outer one, and writes only that.
    tied = {k: v for k, v in fields.items() if k == "tie_word_embeddings"}
    return _read_qwen3_5(fields["text_config"] | tied)


def _write_qwen3_5(config: qwen3_5.Qwen3_5Config) -> dict[str, Any]:
    fields = dataclasses.asdict(config)
    del fields["full_attention_interval"]
    turns = {"rope_type": "default", "rope_theta": fields.pop("rope_theta"),
             "partial_rotary_factor": fields.pop("partial_rotary_factor")}
    return fields | {"layer_types": config.kinds, "hidden_act": "silu", "attention_bias": False,
                     "rope_parameters": turns}


def _made(kind: type, known: Mapping[str, Any], optional: Sequence[str]) -> Any:
    """A configuration from the fields of its names; `optional` ones may be missing."""
    names = [f.name for f in dataclasses.fields(kind)]
    return kind(**{n: known[n] for n in names if n in known or n not in optional})


def _read_scaling(turns: Mapping[str, Any]) -> rope.Scaling | None:
    kind = turns["rope_type"]
    if kind == "default":
        return None
    if kind not in rope.SCALINGS:
        raise ValueError(f"rope_type = {kind!r} is not implemented; use a model with 'default' or "
                         f"one of {sorted(rope.SCALINGS)}")
    for name in ("mscale", "mscale_all_dim"):
        if name in turns:
            raise ValueError(f"rope scaling: {name} is not implemented; use a model without it")
    return _made(rope.SCALINGS[kind], turns,
                 optional=("beta_fast", "beta_slow", "attention_factor", "truncate"))


def _write_decoder(config: qwen3.Qwen3Config) -> dict[str, Any]:
    fields = dataclasses.asdict(config)
    scaling, _ = fields.pop("rope_scaling"), fields.pop("qk_norm")
    kind = next((k for k, made in rope.SCALINGS.items() if isinstance(config.rope_scaling, made)),
                "default")
    return fields | {
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_parameters": {"rope_type": kind, "rope_theta": config.rope_theta,
                            **_without_nulls(scaling or {})},
    }


def _without_nulls(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_nulls(v) for k, v in node.items() if v is not None}
    return node


# Early exports of Llama hold the rotary frequencies, which the config gives.
_FREQUENCIES = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$")
# The vision tower, and the head that predicts several tokens for speculative decoding.
_VISION_AND_MTP = re.compile(r"(model\.)?visual\.|mtp\.")

_QWEN3 = Family(
    "Qwen3ForCausalLM", "qwen3", qwen3.HF_NAMES, lambda fields: _read_decoder(fields, True),
    _write_decoder, qwen3.Qwen3, _FREQUENCIES)
_QWEN3_5 = Family(
    "Qwen3_5ForCausalLM", "qwen3_5_text", qwen3_5.HF_NAMES, _read_qwen3_5, _write_qwen3_5,
    qwen3_5.Qwen3_5, _VISION_AND_MTP, ("model.language_model.", "model."))

_FAMILIES = {
    "qwen3": _QWEN3,
    "llama": dataclasses.replace(
        _QWEN3, architecture="LlamaForCausalLM", model_type="llama",
        read=lambda fields: _read_decoder(fields, False)),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5": dataclasses.replace(_QWEN3_5, read=_read_vision_language),
}
