"""Qwen3.5 (dense text model) as pure functions of (params, tokens), layers scanned.

Source of the architecture: transformers' `Qwen3_5ForCausalLM`, with which the parity tests compare.
Pre-norm blocks `h += mixer(norm(h)); h += swiglu(norm(h))`. The mixer is a gated DeltaNet
(delta_rule.py) or grouped-query attention with an output gate, by the layer's type; published
models repeat three of the former and one of the latter. Norms multiply by 1 + w. Only the first
features of a head have rotary positions. The vision model's three-axis positions (mRoPE) give all
axes the same position in text, which is plain RoPE; this file computes that.

Dimensions: B sequences, T tokens, C tokens of a chunk, D model, H query heads, K key/value heads,
N head dimension, F feed-forward, V vocabulary; of DeltaNet layers: J key heads, I value heads, M
key and query features, E value features, W convolution width.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rime_jax.policy import attention, delta_rule, layers
from rime_jax.policy import qwen3_5_parameters as parameters
from rime_jax.policy.qwen3_5_parameters import FULL, HF_NAMES, LINEAR, Qwen3_5Config

__all__ = ["HF_NAMES", "Qwen3_5", "Qwen3_5Config"]

Params = dict[str, Any]

# As for Qwen3: so few layers compile as fast unrolled, and no scan copies what they save.
_UNROLLED_LAYERS = 6

_L2_EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class Qwen3_5:
    """The policy protocol (policy/base.py) for one configuration.

    Parameters are stacked by layer type, in the order of the layers of that type.

    Attributes:
      config: the sizes.
      dtype: of activations; norms, softmax, delta-rule state and logits stay in float32.
      remat: what the backward pass keeps, one of `layers.REMATS`.
      attention: kernel of packed sequences, one of `attention.KERNELS`.
    """

    config: Qwen3_5Config
    dtype: Any = jnp.float32
    remat: str = "none"
    attention: str = "auto"

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def cuts(self) -> bool:
        return LINEAR not in self.config.kinds

    def init(self, key: jax.Array) -> Params:
        """See `qwen3_5_parameters.init`."""
        return parameters.init(self.config, key)

    def shapes(self) -> Any:
        """A tree like the parameters of `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def logical_axes(self) -> Any:
        return parameters.logical_axes(self.config)

    def hf_layers(self, path: str) -> list[int]:
        """Layer numbers of a stacked parameter of `HF_NAMES`, in the order of its first axis."""
        return self.config.stacks[path.split("/")[0]]

    def hf_heads(self, path: str) -> tuple[int, tuple[int, ...]] | tuple[()]:
        """See policy/base.py and `qwen3_5_parameters`."""
        return parameters.hf_heads(self.config, path)

    def forward(
        self, params: Params, tokens: jax.Array, positions: jax.Array, segments: jax.Array
    ) -> jax.Array:
        """See policy/base.py. tokens, positions, segments [B, T] → [B, T, D].

        Each scanned step is one period of the pattern of layer types.
        """
        c = self.config
        sin_cos = self._rotary(positions)
        period = c.period
        periods = c.num_hidden_layers // len(period)
        unrolled = periods == 1 or c.num_hidden_layers <= _UNROLLED_LAYERS

        def full(x: jax.Array, p: Params) -> jax.Array:
            q, k, v, gate = self._gated_qkv(p, x, sin_cos)
            mixed = attention.packed_attention(q, k, v, segments, self.attention)
            return self._full_output(p, x, mixed, gate)

        def linear(x: jax.Array, p: Params) -> jax.Array:
            h = self._norm(x, p["attn_norm"])
            # Parting the weights is less work than parting what all tokens make of them.
            q, k, v = (
                delta_rule.convolve(self._dot(h, weight), self._cast(kernel), segments)
                for weight, kernel in zip(self._parts(p["qkv"]), self._parts(p["conv"]),
                                          strict=True))
            out, _ = delta_rule.chunked(
                *self._heads(q, k, v), *self._rates(p, h), segments)
            return self._linear_output(p, x, h, out)

        # Layers side by side, in a period or unrolled, are computed again one after another, each
        # when its turn comes, unless the compiler sees that nothing but memory asks for it.
        beside = unrolled or len(period) > 1
        layer = {kind: layers.remat(f, self.remat, prevent_cse=beside)
                 for kind, f in ((FULL, full), (LINEAR, linear))}

        def block(x: jax.Array, stacks: Params) -> tuple[jax.Array, None]:
            for i, kind in enumerate(period):
                place = period[:i].count(kind)
                x = layer[kind](x, jax.tree.map(lambda a, place=place: a[place], stacks[kind]))
            return x, None

        stacks = {
            kind: jax.tree.map(lambda a: a.reshape(periods, -1, *a.shape[1:]), params[kind])
            for kind in c.stacks
        }
        x, _ = jax.lax.scan(block, self._embed(params, tokens), stacks, unroll=unrolled)
        return self._norm(x, params["final_norm"])

    def logits(self, params: Params, hidden: jax.Array) -> jax.Array:
        return layers.head(params["embed" if self.config.tie_word_embeddings else "head"], hidden)

    def init_cache(self, slots: int, tokens: int) -> Any:
        """One pair per layer.

        Full: keys (normed, rotated) and values, each [slots, K, tokens, N]. DeltaNet, whatever
        `tokens`: the last W - 1 columns before the convolution [slots, W - 1, 2 J M + I E], and the
        state, float32 [slots, I, M, E].
        """
        c = self.config
        keys, values = c.linear_features
        kv = (slots, c.num_key_value_heads, tokens, c.head_dim)
        window = (slots, c.linear_conv_kernel_dim - 1, 2 * keys + values)
        state = (slots, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim)
        return tuple(
            (jnp.zeros(kv, self.dtype), jnp.zeros(kv, self.dtype)) if kind == FULL
            else (jnp.zeros(window, self.dtype), jnp.zeros(state, jnp.float32))
            for kind in c.kinds
        )

    def extend(
        self, params: Params, cache: Any, tokens: jax.Array, start: jax.Array, count: jax.Array,
        rows: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """See policy/base.py. Unrolled, as for Qwen3.

        A row whose start is 0 begins from empty states, whatever its slot still holds. What a state
        has taken in cannot be taken back: `start` is what was fed before, never less.
        """
        c = self.config
        C = tokens.shape[1]
        positions_BxC = start[:, None] + jnp.arange(C)[None]
        sin_cos = self._rotary(positions_BxC)
        x = self._embed(params, tokens)
        new_cache = []
        for i, (kind, entry) in enumerate(zip(c.kinds, cache, strict=True)):
            place = c.stacks[kind].index(i)
            p = layers.layer(params[kind], place)
            if kind == FULL:
                targets_BxC = attention.write_targets(start, count, C, entry[0].shape[2])
                q, k, v, gate = self._gated_qkv(p, x, sin_cos)
                entry = (attention.write_cache(entry[0], k, targets_BxC, rows),
                         attention.write_cache(entry[1], v, targets_BxC, rows))
                mixed = attention.cached_attention(q, *entry, positions_BxC, rows)
                x = self._full_output(p, x, mixed, gate)
            elif rows is None:
                x, entry = self._extend_linear(p, entry, x, start, count)
            else:
                own = tuple(a.at[rows].get(mode="clip") for a in entry)
                x, own = self._extend_linear(p, own, x, start, count)
                entry = tuple(a.at[rows].set(b, mode="drop", unique_indices=True)
                              for a, b in zip(entry, own, strict=True))
            new_cache.append(entry)
        return self._norm(x, params["final_norm"]), tuple(new_cache)

    def _extend_linear(
        self, p: Params, entry: tuple, x: jax.Array, start: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, tuple]:
        B, C, _ = x.shape
        # An idle row keeps its state, also where the caller gives its start as 0.
        begins = ((start == 0) & (count > 0)).reshape(B, 1, 1)
        window = jnp.where(begins, 0, entry[0])
        state = jnp.where(begins[..., None], 0, entry[1])
        h = self._norm(x, p["attn_norm"])
        convolved, window = delta_rule.convolve_cached(
            self._dot(h, p["qkv"]), self._cast(p["conv"]), window, count)
        # Tokens beyond the count neither decay the state nor write to it.
        real = (jnp.arange(C)[None] < count[:, None])[..., None]
        log_decay, beta = (jnp.where(real, rate, 0) for rate in self._rates(p, h))
        inputs = (*self._heads(*self._parts(convolved)), log_decay, beta)
        if C == 1:
            q, k, v, log_decay, beta = (a[:, 0] for a in inputs)
            out, state = delta_rule.step(q, k, v, log_decay, beta, state)
            out = out[:, None]
        else:
            out, state = delta_rule.chunked(*inputs, jnp.ones((B, C), jnp.int32), state)
        return self._linear_output(p, x, h, out), (window, state)

    def _parts(self, x: jax.Array) -> list[jax.Array]:
        """Queries and keys [..., J M] and values [..., I E] of [..., 2 J M + I E] by key head."""
        M = self.config.linear_key_head_dim
        by_head = x.reshape(*x.shape[:-1], self.config.linear_num_key_heads, -1)
        return [part.reshape(*x.shape[:-1], -1) for part in jnp.split(by_head, (M, 2 * M), -1)]

    def _heads(
        self, q: jax.Array, k: jax.Array, v: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Convolved features [B, T, …] as queries and keys [B, T, J, M], of length M^-0.5 and 1,
        and values [B, T, I, E]."""
        c = self.config

        def heads(x: jax.Array, n: int) -> jax.Array:
            return jax.nn.silu(x).reshape(*x.shape[:2], n, -1)

        def unit(x: jax.Array) -> jax.Array:
            x = heads(x, c.linear_num_key_heads).astype(jnp.float32)
            return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), -1, keepdims=True) + _L2_EPS)

        q = unit(q) * c.linear_key_head_dim**-0.5
        return q, unit(k), heads(v, c.linear_num_value_heads)

    def _rates(self, p: Params, h: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Log decay and beta of the delta rule, float32 [B, T, I]."""
        per_head = (1, 1, -1)
        step = jax.nn.softplus(
            self._dot(h, p["a"]).astype(jnp.float32)
            + p["dt_bias"].astype(jnp.float32).reshape(per_head))
        log_decay = -jnp.exp(p["decay"].astype(jnp.float32)).reshape(per_head) * step
        return log_decay, jax.nn.sigmoid(self._dot(h, p["b"]).astype(jnp.float32))

    def _linear_output(self, p: Params, x: jax.Array, h: jax.Array, out: jax.Array) -> jax.Array:
        """The block's output, given its input x, h = norm(x) and the delta rule's output."""
        B, T, _ = x.shape
        normed = layers.rms_norm(out, p["out_norm"], self.config.rms_norm_eps)
        gate = jax.nn.silu(self._dot(h, p["z"]).astype(jnp.float32)).reshape(out.shape)
        gated = (normed.astype(jnp.float32) * gate).astype(self.dtype)
        return self._feed_forward(p, x + self._dot(gated.reshape(B, T, -1), p["out"]))

    def _gated_qkv(self, p: Params, x: jax.Array, sin_cos) -> tuple[jax.Array, ...]:
        """Queries [B, H, T, N], keys, values [B, K, T, N] and the output's gate [B, T, H N]."""
        c = self.config
        B, T, _ = x.shape
        h = self._norm(x, p["attn_norm"])

        def heads(name: str, n: int) -> jax.Array:
            return self._dot(h, p[name]).reshape(B, T, n, -1)

        q, gate = jnp.split(heads("q", c.num_attention_heads), 2, -1)
        q = layers.rotate(self._norm(q, p["q_norm"]), sin_cos)
        k = layers.rotate(self._norm(heads("k", c.num_key_value_heads), p["k_norm"]), sin_cos)
        v = heads("v", c.num_key_value_heads)
        return (*(a.swapaxes(1, 2) for a in (q, k, v)), gate.reshape(B, T, -1))

    def _full_output(self, p: Params, x: jax.Array, mixed: jax.Array, gate: jax.Array) -> jax.Array:
        """The block's output, given its input x, the attention's [B, H, T, N], and the gate."""
        B, T, _ = x.shape
        gated = mixed.swapaxes(1, 2).reshape(B, T, -1) * jax.nn.sigmoid(gate)
        return self._feed_forward(p, x + self._dot(gated, p["o"]))

    def _feed_forward(self, p: Params, x: jax.Array) -> jax.Array:
        return x + layers.swiglu(p, self._norm(x, p["mlp_norm"]))

    def _embed(self, params: Params, tokens: jax.Array) -> jax.Array:
        return layers.embed(params["embed"], tokens, self.dtype)

    def _rotary(self, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = self.config
        return layers.rotary(positions, layers.rotary_frequencies(c.rotated, c.rope_theta))

    def _norm(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        return zero_centred_rms_norm(x, weight, self.config.rms_norm_eps)

    def _dot(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        return x @ self._cast(weight)

    def _cast(self, weight: jax.Array) -> jax.Array:
        return weight.astype(self.dtype)


def zero_centred_rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """RMS norm over the last axis times 1 + weight, all in float32, cast back at the end."""
    wide = layers.rms_norm(x.astype(jnp.float32), 1 + weight.astype(jnp.float32), eps)
    return wide.astype(x.dtype)
