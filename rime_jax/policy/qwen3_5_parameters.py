"""The parameters of Qwen3.5: sizes, shapes, axes, names at Hugging Face, initial values.

One table has all of it. A parameter's axes are written in symbols: D model, H query heads, K
key/value heads, N head dimension, F feed-forward, V vocabulary; of DeltaNet layers J key heads, I
value heads, M key and query features, E value features, W convolution width.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rime_jax.policy import sizes

LINEAR, FULL = "linear_attention", "full_attention"

# Parameter → (axes, Hugging Face's name, how its tensor becomes ours).
_TOP = {
    "embed": ("V D", "model.embed_tokens.weight", "none"),
    "final_norm": ("D", "model.norm.weight", "none"),
    "head": ("V D", "lm_head.weight", "none"),
}
_BLOCK = {
    "attn_norm": ("D", "input_layernorm.weight", "none"),
    "mlp_norm": ("D", "post_attention_layernorm.weight", "none"),
    "gate": ("D F", "mlp.gate_proj.weight", "transpose"),
    "up": ("D F", "mlp.up_proj.weight", "transpose"),
    "down": ("F D", "mlp.down_proj.weight", "transpose"),
}
_STACKS = {
    LINEAR: _BLOCK | {
        # Per key head, M features of the query, M of the key, then the values of its I / J heads,
        # so that dividing the heads among devices divides this axis in one place for all three.
        "qkv": ("D 2JM+IE", "linear_attn.in_proj_qkv.weight", "transpose"),
        "z": ("D IE", "linear_attn.in_proj_z.weight", "transpose"),
        "b": ("D I", "linear_attn.in_proj_b.weight", "transpose"),
        "a": ("D I", "linear_attn.in_proj_a.weight", "transpose"),
        "conv": ("W 2JM+IE", "linear_attn.conv1d.weight", "depthwise"),
        "decay": ("I", "linear_attn.A_log", "none"),
        "dt_bias": ("I", "linear_attn.dt_bias", "none"),
        "out_norm": ("E", "linear_attn.norm.weight", "none"),
        "out": ("IE D", "linear_attn.out_proj.weight", "transpose"),
    },
    FULL: _BLOCK | {
        # Per query head, N features of the query, then N of the output's gate.
        "q": ("D 2HN", "self_attn.q_proj.weight", "transpose"),
        "k": ("D KN", "self_attn.k_proj.weight", "transpose"),
        "v": ("D KN", "self_attn.v_proj.weight", "transpose"),
        "o": ("HN D", "self_attn.o_proj.weight", "transpose"),
        "q_norm": ("N", "self_attn.q_norm.weight", "none"),
        "k_norm": ("N", "self_attn.k_norm.weight", "none"),
    },
}

_AXES = {
    "V": "vocab", "D": "embed", "F": "mlp", "N": "head_dim", "HN": "heads", "2HN": "heads",
    "KN": "kv_heads", "I": "heads", "E": "head_dim", "IE": "heads", "2JM+IE": "heads", "W": None,
}

# Our parameter → (Hugging Face's name, how its tensor becomes ours): as it is (`none`), torch's
# [out, in] as [in, out] (`transpose`), [features, 1, width] as [width, features] (`depthwise`).
# `{}` is the number of a layer.
HF_NAMES = {name: (theirs, change) for name, (_, theirs, change) in _TOP.items()} | {
    f"{kind}/{name}": ("model.layers.{}." + theirs, change)
    for kind, entries in _STACKS.items() for name, (_, theirs, change) in entries.items()
}


@dataclasses.dataclass(frozen=True)
class Qwen3_5Config:
    """Sizes, under the names of the text model's config.json at Hugging Face.

    Attributes:
      layer_types: of each layer, `linear_attention` or `full_attention`; None: every
        `full_attention_interval`-th layer is full.
      max_position_embeddings: longest context in tokens that a server of an exported model admits;
        nothing here depends on it.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int = 4
    layer_types: tuple[str, ...] | None = None
    full_attention_interval: int = 4
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e7
    partial_rotary_factor: float = 0.25
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    max_position_embeddings: int = 32768

    def __post_init__(self):
        sizes.require_positive(self)
        for many, few in (("num_attention_heads", "num_key_value_heads"),
                          ("linear_num_value_heads", "linear_num_key_heads")):
            if getattr(self, many) % getattr(self, few):
                raise ValueError(f"{many} = {getattr(self, many)} is no multiple of "
                                 f"{few} = {getattr(self, few)}")
        if self.rotated == 0 or self.rotated % 2:
            raise ValueError(
                f"head_dim = {self.head_dim} times partial_rotary_factor = "
                f"{self.partial_rotary_factor} is {self.rotated} features; rotary positions need "
                "pairs, and at least one"
            )
        if len(self.kinds) != self.num_hidden_layers or not set(self.kinds) <= {LINEAR, FULL}:
            raise ValueError(
                f"layer_types = {self.layer_types}: give {self.num_hidden_layers} "
                f"(num_hidden_layers) of {LINEAR!r} and {FULL!r}, or None"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The type of each layer."""
        if self.layer_types is not None:
            return tuple(self.layer_types)
        return tuple(FULL if (i + 1) % self.full_attention_interval == 0 else LINEAR
                     for i in range(self.num_hidden_layers))

    @property
    def period(self) -> tuple[str, ...]:
        """The shortest pattern of layer types of which `kinds` is a repetition."""
        kinds, L = self.kinds, self.num_hidden_layers
        return next(kinds[:n] for n in range(1, L + 1)
                    if L % n == 0 and kinds[:n] * (L // n) == kinds)

    @property
    def stacks(self) -> dict[str, list[int]]:
        """Stack of parameters (layers of one type) → the numbers of its layers, in order."""
        return {kind: [i for i, k in enumerate(self.kinds) if k == kind]
                for kind in (LINEAR, FULL) if kind in self.kinds}

    @property
    def rotated(self) -> int:
        """Features of a head that have rotary positions."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def linear_features(self) -> tuple[int, int]:
        """(J M, I E): features of all keys, and of all values, of a DeltaNet layer."""
        return (self.linear_num_key_heads * self.linear_key_head_dim,
                self.linear_num_value_heads * self.linear_value_head_dim)


def init(config: Qwen3_5Config, key: jax.Array) -> Any:
    """Normal weights, the residual outputs scaled by 1 / sqrt(2 L) (GPT-2); norms as 1.

    Decay rates are uniform in (0.01, 16) and `dt_bias` is 1, as in transformers.
    """
    sizes = _sizes(config)
    keys = iter(jax.random.split(key, len(HF_NAMES)))
    residual = (2 * config.num_hidden_layers) ** -0.5

    def array(path: tuple, symbols: str) -> jax.Array:
        name = path[-1].key
        stacked = [len(config.stacks[stack.key]) for stack in path[:-1]]
        shape = (*stacked, *(sizes[s] for s in symbols.split()))
        if name in ("dt_bias", "out_norm"):
            return jnp.ones(shape)
        if name.endswith("_norm"):
            return jnp.zeros(shape)
        if name == "decay":
            return jnp.log(jax.random.uniform(next(keys), shape, minval=0.01, maxval=16.0))
        fan_in = shape[-1] if name == "head" else shape[-2]
        scale = config.initializer_range if name == "embed" else fan_in**-0.5
        scale *= residual if name in ("o", "out", "down") else 1.0
        return jax.random.normal(next(keys), shape) * scale

    return jax.tree_util.tree_map_with_path(array, _symbols(config))


def logical_axes(config: Qwen3_5Config) -> Any:
    """A tree like the parameters whose leaves are tuples of logical axis names."""

    def axes(path: tuple, symbols: str) -> tuple[str | None, ...]:
        return ("layers",) * (len(path) - 1) + tuple(_AXES[s] for s in symbols.split())

    return jax.tree_util.tree_map_with_path(axes, _symbols(config))


def hf_heads(config: Qwen3_5Config, path: str) -> tuple[int, tuple[int, ...]] | tuple[()]:
    """Key heads, and features of all queries, keys and values, of what is ordered by head here.

    Files have the queries of all heads, then the keys, then the values.
    """
    if path not in (f"{LINEAR}/qkv", f"{LINEAR}/conv"):
        return ()
    keys, values = config.linear_features
    return config.linear_num_key_heads, (keys, keys, values)


def _symbols(config: Qwen3_5Config) -> Any:
    """A tree like the parameters: the axes of each, a stack's first one left out."""
    tree: dict[str, Any] = {name: axes for name, (axes, _, _) in _TOP.items()}
    if config.tie_word_embeddings:
        del tree["head"]
    for kind in config.stacks:
        tree[kind] = {name: axes for name, (axes, _, _) in _STACKS[kind].items()}
    return tree


def _sizes(c: Qwen3_5Config) -> dict[str, int]:
    keys, values = c.linear_features
    return {
        "V": c.vocab_size, "D": c.hidden_size, "F": c.intermediate_size, "N": c.head_dim,
        "HN": c.num_attention_heads * c.head_dim, "2HN": 2 * c.num_attention_heads * c.head_dim,
        "KN": c.num_key_value_heads * c.head_dim, "I": c.linear_num_value_heads,
        "E": c.linear_value_head_dim, "IE": values, "2JM+IE": 2 * keys + values,
        "W": c.linear_conv_kernel_dim,
    }
