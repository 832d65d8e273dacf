"""Causal grouped-query attention: over packed sequences, and over a cache.

Dimensions: B sequences, T queries, S keys, H query heads, K key/value heads, N head dimension.
"""

import math

import jax
import jax.numpy as jnp


def packed_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array
) -> jax.Array:
    """Each token attends to earlier tokens, and itself, of its own segment.

    Args:
      q: [B, H, T, N]; k, v: [B, K, T, N].
      segments: int32 [B, T].

    Returns:
      [B, H, T, N].
    """
    T = segments.shape[1]
    causal_TxT = jnp.tril(jnp.ones((T, T), bool))
    return _masked(q, k, v, (segments[:, :, None] == segments[:, None, :]) & causal_TxT[None])


def cached_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array
) -> jax.Array:
    """Token at position p of a row attends to cached positions 0..p of that row.

    Args:
      q: [B, H, T, N]; k, v: [B, K, S, N], the caches with the new tokens written.
      positions: int32 [B, T].
    """
    S = k.shape[2]
    return _masked(q, k, v, jnp.arange(S)[None, None] <= positions[:, :, None])


def write_cache(cache: jax.Array, new: jax.Array, targets: jax.Array) -> jax.Array:
    """Puts new [B, K, C, N] at positions targets [B, C] of cache [B, K, S, N].

    Targets of a row are different; those from S on are dropped.
    """

    def write_row(cache_KxSxN, new_KxCxN, targets_C):
        return cache_KxSxN.at[:, targets_C].set(new_KxCxN, mode="drop", unique_indices=True)

    return jax.vmap(write_row)(cache, new, targets)


def write_targets(start: jax.Array, count: jax.Array, chunk: int, tokens: int) -> jax.Array:
    """int32 [B, chunk] cache positions of a chunk; what is beyond `count` is dropped.

    Args:
      start, count: int32 [B]; tokens: S of the cache.
    """
    place = jnp.arange(chunk)[None]
    return jnp.where(place < count[:, None], start[:, None] + place, tokens + place)


def _masked(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax attention under mask [B, T, S].

    The G query heads of a key head are folded into its rows, so that both products are plain
    batched matrix products (a quarter faster than five-axis contractions on a CPU).
    """
    B, H, T, N = q.shape
    K, S = k.shape[1:3]
    G = H // K
    rows = q.reshape(B, K, G * T, N)
    scores = jnp.matmul(rows, k.swapaxes(2, 3), preferred_element_type=jnp.float32)
    scores = scores.reshape(B, H, T, S) * (1 / math.sqrt(N))
    # Finite, so that a row without any key (padding) yields numbers and not nan.
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e30), -1).astype(v.dtype)
    return (weights.reshape(B, K, G * T, S) @ v).reshape(B, H, T, N)
