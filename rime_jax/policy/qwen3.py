"""Qwen3 (dense) and Llama as pure functions of (params, tokens), layers scanned.

Source of the architecture: Qwen3's published configuration and the checks in transformers'
`Qwen3ForCausalLM` (tests compare with it where torch is there). Pre-norm blocks
`h += attention(norm(h)); h += swiglu(norm(h))`; grouped-query attention with RMS-normalised queries
and keys and rotary positions in the half-split form; no biases; tied or own output head. Llama is
the same without the norms of queries and keys (`LlamaForCausalLM`).

Dimensions: B sequences, T tokens, S cached tokens, D model, H query heads, K key/value heads,
G = H // K, N head dimension, F feed-forward, V vocabulary, L layers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rime_jax.policy import attention, layers, rope, sizes

Params = dict[str, Any]

# Our parameter → (Hugging Face's name, how its tensor becomes ours: policy/layout.py). `{}` is the
# number of the layer.
HF_NAMES = {
    "embed": ("model.embed_tokens.weight", "none"),
    "final_norm": ("model.norm.weight", "none"),
    "head": ("lm_head.weight", "none"),
    "layers/attn_norm": ("model.layers.{}.input_layernorm.weight", "none"),
    "layers/mlp_norm": ("model.layers.{}.post_attention_layernorm.weight", "none"),
    "layers/q_norm": ("model.layers.{}.self_attn.q_norm.weight", "none"),
    "layers/k_norm": ("model.layers.{}.self_attn.k_norm.weight", "none"),
    "layers/q": ("model.layers.{}.self_attn.q_proj.weight", "transpose"),
    "layers/k": ("model.layers.{}.self_attn.k_proj.weight", "transpose"),
    "layers/v": ("model.layers.{}.self_attn.v_proj.weight", "transpose"),
    "layers/o": ("model.layers.{}.self_attn.o_proj.weight", "transpose"),
    "layers/gate": ("model.layers.{}.mlp.gate_proj.weight", "transpose"),
    "layers/up": ("model.layers.{}.mlp.up_proj.weight", "transpose"),
    "layers/down": ("model.layers.{}.mlp.down_proj.weight", "transpose"),
}

# A scan copies what each layer saves; so few layers compile as fast unrolled, and run a quarter
# faster (CPU).
_UNROLLED_LAYERS = 6


@dataclasses.dataclass(frozen=True)
class Qwen3Config:
    """Sizes, under the names of Hugging Face's config.json.

    Attributes:
      qk_norm: queries and keys are RMS-normalised (Qwen3) or not (Llama).
      rope_scaling: of the rotary frequencies; None: theirs of `rope_theta`.
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
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02
    qk_norm: bool = True
    rope_scaling: rope.Scaling | None = None
    max_position_embeddings: int = 32768

    def __post_init__(self):
        sizes.require_positive(self)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads = {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim = {self.head_dim} is odd; rotary positions need pairs")


@dataclasses.dataclass(frozen=True)
class Qwen3:
    """The policy protocol (policy/base.py) for one configuration.

    Attributes:
      config: the sizes.
      dtype: of activations; norms, softmax and logits stay in float32.
      remat: what the backward pass keeps, one of `layers.REMATS`.
      attention: kernel of packed sequences, one of `attention.KERNELS`.
    """

    config: Qwen3Config
    dtype: Any = jnp.float32
    remat: str = "none"
    attention: str = "auto"

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def cuts(self) -> bool:
        return True

    def init(self, key: jax.Array) -> Params:
        """Normal weights; the residual outputs are scaled by 1 / sqrt(2 L) (GPT-2)."""
        c = self.config
        shapes = _shapes(c)
        keys = iter(jax.random.split(key, 16))

        def normal(name: str, scale: float) -> jax.Array:
            return jax.random.normal(next(keys), shapes[name]) * scale

        residual = (2 * c.num_hidden_layers) ** -0.5
        q_features = c.num_attention_heads * c.head_dim
        norms = ("attn_norm", "mlp_norm") + (("q_norm", "k_norm") if c.qk_norm else ())
        params = {
            "embed": normal("embed", c.initializer_range),
            "final_norm": jnp.ones(shapes["final_norm"]),
            "layers": {
                **{n: jnp.ones(shapes[n]) for n in norms},
                **{n: normal(n, c.hidden_size**-0.5) for n in ("q", "k", "v", "gate", "up")},
                "o": normal("o", q_features**-0.5 * residual),
                "down": normal("down", c.intermediate_size**-0.5 * residual),
            },
        }
        if not c.tie_word_embeddings:
            params["head"] = normal("head", c.hidden_size**-0.5)
        return params

    def shapes(self) -> Any:
        """A tree like the parameters of `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def logical_axes(self) -> Any:
        layers = {
            "attn_norm": ("layers", "embed"),
            "mlp_norm": ("layers", "embed"),
            "q": ("layers", "embed", "heads"),
            "k": ("layers", "embed", "kv_heads"),
            "v": ("layers", "embed", "kv_heads"),
            "o": ("layers", "heads", "embed"),
            "gate": ("layers", "embed", "mlp"),
            "up": ("layers", "embed", "mlp"),
            "down": ("layers", "mlp", "embed"),
        }
        if self.config.qk_norm:
            layers |= {"q_norm": ("layers", "head_dim"), "k_norm": ("layers", "head_dim")}
        axes = {"embed": ("vocab", "embed"), "final_norm": ("embed",), "layers": layers}
        if not self.config.tie_word_embeddings:
            axes["head"] = ("vocab", "embed")
        return axes

    def hf_layers(self, path: str) -> list[int]:
        """Layer numbers of a stacked parameter of `HF_NAMES`, in the order of its first axis."""
        return list(range(self.config.num_hidden_layers))

    def hf_heads(self, path: str) -> tuple[()]:
        """See policy/base.py. Queries, keys and values are parameters of their own."""
        return ()

    def forward(
        self, params: Params, tokens: jax.Array, positions: jax.Array, segments: jax.Array
    ) -> jax.Array:
        """See policy/base.py. tokens, positions, segments [B, T] → [B, T, D]."""
        c = self.config
        sin_cos = self._rotary(positions)

        def block(x_BxTxD: jax.Array, p: Params) -> tuple[jax.Array, None]:
            q, k, v = self._qkv(p, x_BxTxD, sin_cos)
            mixed = attention.packed_attention(q, k, v, segments, self.attention)
            return self._residuals(p, x_BxTxD, mixed), None

        x, _ = jax.lax.scan(
            layers.remat(block, self.remat, prevent_cse=False), self._embed(params, tokens),
            params["layers"],
            unroll=c.num_hidden_layers <= _UNROLLED_LAYERS,
        )
        return layers.rms_norm(x, params["final_norm"], c.rms_norm_eps)

    def logits(self, params: Params, hidden: jax.Array) -> jax.Array:
        return layers.head(params["embed" if self.config.tie_word_embeddings else "head"], hidden)

    def init_cache(self, slots: int, tokens: int) -> Any:
        """Per layer the keys (normed, rotated) and values, each [slots, K, tokens, N]."""
        c = self.config
        shape = (slots, c.num_key_value_heads, tokens, c.head_dim)
        return tuple(
            (jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))
            for _ in range(c.num_hidden_layers)
        )

    def extend(
        self,
        params: Params,
        cache: Any,
        tokens: jax.Array,
        start: jax.Array,
        count: jax.Array,
        rows: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """See policy/base.py. The layers are unrolled: a scanned cache would be copied per step."""
        c = self.config
        C = tokens.shape[1]
        positions_BxC = start[:, None] + jnp.arange(C)[None]
        targets_BxC = attention.write_targets(start, count, C, cache[0][0].shape[2])
        sin_cos = self._rotary(positions_BxC)
        x = self._embed(params, tokens)
        new_cache = []
        for i, (k_cache, v_cache) in enumerate(cache):
            p = layers.layer(params["layers"], i)
            q, k, v = self._qkv(p, x, sin_cos)
            k_cache = attention.write_cache(k_cache, k, targets_BxC, rows)
            v_cache = attention.write_cache(v_cache, v, targets_BxC, rows)
            mixed = attention.cached_attention(q, k_cache, v_cache, positions_BxC, rows)
            x = self._residuals(p, x, mixed, layers.swiglu_apart)
            new_cache.append((k_cache, v_cache))
        return layers.rms_norm(x, params["final_norm"], c.rms_norm_eps), tuple(new_cache)

    def _embed(self, params: Params, tokens: jax.Array) -> jax.Array:
        return layers.embed(params["embed"], tokens, self.dtype)

    def _rotary(self, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = self.config
        frequencies = layers.rotary_frequencies(c.head_dim, c.rope_theta)
        if c.rope_scaling is None:
            return layers.rotary(positions, frequencies)
        sin, cos = layers.rotary(positions, c.rope_scaling.scale(frequencies, c.rope_theta))
        return c.rope_scaling.amplitude * sin, c.rope_scaling.amplitude * cos

    def _qkv(
        self, p: Params, x_BxTxD: jax.Array, sin_cos: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries [B, H, T, N], keys and values [B, K, T, N] of the block's input x."""
        c = self.config
        B, T, _ = x_BxTxD.shape
        h = layers.rms_norm(x_BxTxD, p["attn_norm"], c.rms_norm_eps)

        def heads(name: str, n: int) -> jax.Array:
            return (h @ p[name].astype(self.dtype)).reshape(B, T, n, c.head_dim)

        q, k = heads("q", c.num_attention_heads), heads("k", c.num_key_value_heads)
        v = heads("v", c.num_key_value_heads)
        if c.qk_norm:
            q = layers.rms_norm(q, p["q_norm"], c.rms_norm_eps)
            k = layers.rms_norm(k, p["k_norm"], c.rms_norm_eps)
        q, k = layers.rotate(q, sin_cos), layers.rotate(k, sin_cos)
        return q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)

    def _residuals(
        self, p: Params, x_BxTxD: jax.Array, mixed_BxHxTxN: jax.Array,
        feed_forward: Callable[[Params, jax.Array], jax.Array] = layers.swiglu,
    ) -> jax.Array:
        """Adds the attention's output, then the feed-forward's."""
        B, H, T, N = mixed_BxHxTxN.shape
        flat = mixed_BxHxTxN.swapaxes(1, 2).reshape(B, T, H * N)
        x = x_BxTxD + flat @ p["o"].astype(self.dtype)
        return x + feed_forward(p, layers.rms_norm(x, p["mlp_norm"], self.config.rms_norm_eps))


def _shapes(c: Qwen3Config) -> dict[str, tuple[int, ...]]:
    L, D, F = c.num_hidden_layers, c.hidden_size, c.intermediate_size
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    return {
        "embed": (c.vocab_size, D), "head": (c.vocab_size, D), "final_norm": (D,),
        "attn_norm": (L, D), "mlp_norm": (L, D), "q_norm": (L, c.head_dim),
        "k_norm": (L, c.head_dim), "q": (L, D, q), "k": (L, D, kv), "v": (L, D, kv),
        "o": (L, q, D), "gate": (L, D, F), "up": (L, D, F), "down": (L, F, D),
    }
