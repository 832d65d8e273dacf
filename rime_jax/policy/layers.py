"""Pieces that the model families share: remat, norms, rotary positions, feed-forward, embedding."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rime_jax.policy import attention

# Up to this vocabulary an embedding lookup is a product with one-hot rows: its gradient is then a
# matrix product too, and not a scatter, which CPUs do one row at a time.
_ONE_HOT_VOCABULARY = 512


# What is kept for the backward pass by each `model.remat`; what is not is computed again.
REMATS = ("none", "layer", "attention", "matmuls")


def remat(layer: Callable, kind: str, prevent_cse: bool) -> Callable:
    """A layer that keeps for its backward pass what `kind`, one of `REMATS`, says.

    Args:
      layer: a function of the layer's input and parameters.
      kind: `none`: everything is kept; `layer`: the input; `attention`: and the fused attention's
        output; `matmuls`: and the products with the layer's matrices.
      prevent_cse: False inside of a scan, whose compiler cannot merge both computations.
    """
    if kind == "none":
        return layer
    policies = jax.checkpoint_policies
    kept = policies.save_only_these_names(attention.OUTPUT)
    if kind == "matmuls":
        kept = policies.save_from_both_policies(kept, policies.dots_with_no_batch_dims_saveable)
    return jax.checkpoint(layer, prevent_cse=prevent_cse, policy=None if kind == "layer" else kept)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """RMS norm over the last axis in float32, cast back before the weight (as Qwen3 and Llama)."""
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + eps)
    shape = (1,) * (x.ndim - 1) + weight.shape
    return normed.astype(x.dtype) * weight.astype(x.dtype).reshape(shape)


def rotary(positions: jax.Array, frequencies: jax.Array) -> tuple[jax.Array, jax.Array]:
    """sin and cos [B, T, 1, R / 2] of positions [B, T] × frequencies [R / 2], in float32."""
    angle = positions[..., None, None].astype(jnp.float32) * frequencies.reshape(1, 1, 1, -1)
    return jnp.sin(angle), jnp.cos(angle)


def rotary_frequencies(rotated: int, theta: float) -> jax.Array:
    """theta ** (-2 j / R) for j < R / 2, R = `rotated` dimensions of a head."""
    half = rotated // 2
    return theta ** (-jnp.arange(half, dtype=jnp.float32) / half)


def rotate(x: jax.Array, sin_cos: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns the first R features of x [B, T, heads, N] (half-split form); the rest passes."""
    sin, cos = (t.astype(x.dtype) for t in sin_cos)
    half = sin.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def swiglu(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """down(silu(gate x) * up x); p holds `gate`, `up` [D, F] and `down` [F, D]."""
    # One product for both halves; stacked on an axis of their own they stay shardable.
    both_Dx2xF = jnp.stack([p["gate"], p["up"]], 1).astype(x.dtype)
    gate_up = jnp.einsum("btd,dcf->btcf", x, both_Dx2xF)
    return (jax.nn.silu(gate_up[:, :, 0]) * gate_up[:, :, 1]) @ p["down"].astype(x.dtype)


def swiglu_apart(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """`swiglu` by a product for each half: without a copy of both, which few tokens do not pay."""
    gate, up = (x @ p[name].astype(x.dtype) for name in ("gate", "up"))
    return (jax.nn.silu(gate) * up) @ p["down"].astype(x.dtype)


def layer(stack: Any, i: int) -> dict[str, jax.Array]:
    """Parameters of layer i of a stack: arrays with the layers on their first axis, or a tuple."""
    return stack[i] if isinstance(stack, tuple) else jax.tree.map(lambda a: a[i], stack)


def embed(embedding_VxD: jax.Array, tokens: jax.Array, dtype: Any) -> jax.Array:
    """Rows [..., D] of an embedding."""
    table = embedding_VxD.astype(dtype)
    if table.shape[0] <= _ONE_HOT_VOCABULARY:
        return jax.nn.one_hot(tokens, table.shape[0], dtype=dtype) @ table
    return table[tokens]


def head(weight_VxD: jax.Array, hidden: jax.Array) -> jax.Array:
    """Logits, float32 [..., V]."""
    return jnp.matmul(
        hidden, weight_VxD.astype(hidden.dtype).T, preferred_element_type=jnp.float32
    )
