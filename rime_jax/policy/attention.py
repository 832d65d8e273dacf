"""Causal grouped-query attention: over packed sequences, and over a cache.

Packed sequences go to the platform's fused kernel where it can take them: Pallas splash attention
on TPU, cuDNN on GPU, plain XLA elsewhere. `packed_attention` decides while it is traced and logs
each decision once.

Dimensions: B sequences, T queries, S keys, H query heads, K key/value heads, N head dimension.
"""

import functools
import logging
import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

_log = logging.getLogger(__name__)

KERNELS = ("auto", "xla", "splash", "cudnn")

# The fused kernel of each platform that has one.
_FUSED = {"tpu": "splash", "gpu": "cudnn"}

# Name of splash attention's output, and of the logarithms of its denominators, for `layers.remat`.
OUTPUT = "attention_output"

# Tile sizes of splash attention to choose from: the largest that divides T (its default is 128;
# larger tiles keep the matrix unit busy). The backward pass writes a gradient of all queries for
# each block of keys, so that larger ones save memory; they hold this many entries at most.
_SPLASH_BLOCKS = (4096, 2048, 1024, 512, 256, 128)
_SPLASH_BLOCK = 512
_SPLASH_KEY_ENTRIES = 1 << 18

# Without a fused kernel: rows from this length on are computed in so many blocks of queries, each
# over the keys up to its own end, which leaves out three eighths of the products.
_LONG_ROW, _QUERY_BLOCKS = 256, 4

# Caches up to this many tokens are read whole.
_SHORT_CACHE = 128


def packed_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, kernel: str = "auto",
    interpret: bool = False,
) -> jax.Array:
    """Each token attends to earlier tokens, and itself, of its own segment.

    Args:
      q: [B, H, T, N]; k, v: [B, K, T, N].
      segments: int32 [B, T].
      kernel: one of `KERNELS`; `auto` takes the platform's fused one where the shapes allow it.
      interpret: run splash attention in Pallas' interpreter (tests without a TPU).

    Returns:
      [B, H, T, N].

    Raises:
      ValueError: the named kernel cannot take these shapes.
    """
    chosen = _choose(kernel, jax.default_backend(), q.shape[2], q.shape[3], q.dtype.name)
    if chosen == "splash":
        return _splash(q, k, v, segments, interpret)
    T = segments.shape[1]
    causal_TxT = jnp.tril(jnp.ones((T, T), bool))
    mask_BxTxT = (segments[:, :, None] == segments[:, None, :]) & causal_TxT[None]
    if chosen == "cudnn":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        mixed = jax.nn.dot_product_attention(
            q, k, v, mask=mask_BxTxT[:, None], implementation="cudnn"
        )
        return mixed.swapaxes(1, 2)
    blocks = _QUERY_BLOCKS if T >= _LONG_ROW and T % _QUERY_BLOCKS == 0 else 1
    size = T // blocks
    return jnp.concatenate([
        _masked(q[:, :, i : i + size], k[:, :, : i + size], v[:, :, : i + size],
                mask_BxTxT[:, i : i + size, : i + size])
        for i in range(0, T, size)
    ], 2)


def check_platform(kernel: str, platform: str) -> None:
    """Refuses a kernel by name where it does not run; `auto` never is.

    Args:
      kernel: one of `KERNELS`.
      platform: jax's name of the backend.

    Raises:
      ValueError: names the platform that it is of.
    """
    wanted = {fused: name for name, fused in _FUSED.items()}.get(kernel, platform)
    if wanted != platform:
        raise ValueError(f"model.attention = {kernel!r} runs on a {wanted.upper()}, and this "
                         f"machine computes on a {platform.upper()}; use 'auto'")


@functools.cache
def _choose(kernel: str, platform: str, tokens: int, head_dim: int, dtype: str) -> str:
    """The kernel for a shape; what is cached is also logged only once."""
    obstacles = {
        "xla": "",
        "splash": "" if tokens % 128 == 0 and head_dim % 128 == 0 else
        f"it needs multiples of 128, not {tokens} tokens with heads of {head_dim}",
        "cudnn": "" if dtype in ("bfloat16", "float16") and head_dim % 8 == 0 and head_dim <= 128
        else f"it needs bfloat16 and heads of at most 128, not {dtype} with {head_dim}",
    }
    if kernel != "auto":
        if obstacles[kernel]:
            raise ValueError(f"model.attention = {kernel!r}: {obstacles[kernel]}; use 'auto'")
        chosen = kernel
    else:
        fused = _FUSED.get(platform, "xla")
        chosen = "xla" if obstacles[fused] else fused
        if obstacles[fused]:
            _log.warning("no %s attention: %s", fused, obstacles[fused])
    _log.info("attention of %d tokens, heads of %d, on %s: %s", tokens, head_dim, platform, chosen)
    return chosen


def _splash(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, interpret: bool
) -> jax.Array:
    """Pallas splash attention; under a mesh each device takes its rows and heads."""
    mesh = jax.sharding.get_abstract_mesh()
    local = functools.partial(_splash_local, interpret=interpret)
    if mesh.empty or mesh.size == 1:
        return local(q, k, v, segments)
    rows = tuple(a for a in ("data", "fsdp") if a in mesh.axis_names)
    heads = "tensor" if k.shape[1] % mesh.shape.get("tensor", 1) == 0 else None
    spec = P(rows, heads, None, None)
    return jax.shard_map(
        local, mesh=mesh, in_specs=(spec, spec, spec, P(rows, None)), out_specs=spec,
        check_vma=False,
    )(q, k, v, segments)


def _splash_local(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, interpret: bool
) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    H, T, N = q.shape[1:]
    block = next(b for b in _SPLASH_BLOCKS if T % b == 0 and b <= _SPLASH_BLOCK)
    keys = next(b for b in _SPLASH_BLOCKS if T % b == 0 and b * N <= _SPLASH_KEY_ENTRIES)
    sizes = kernels.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block,
        block_kv_dkv=keys, block_kv_dkv_compute=min(block, keys), use_fused_bwd_kernel=True,
    )
    attend = kernels.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((T, T))] * H), head_shards=1, q_seq_shards=1,
        block_sizes=sizes, residual_checkpoint_name=OUTPUT, interpret=interpret,
    )

    def one(q_HxTxN, k_KxTxN, v_KxTxN, segments_T):
        return attend(q_HxTxN, k_KxTxN, v_KxTxN,
                      segment_ids=kernels.SegmentIds(segments_T, segments_T))

    return jax.vmap(one)(q * (1 / math.sqrt(N)), k, v, segments)


def cached_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, rows: jax.Array | None = None
) -> jax.Array:
    """Token at position p of a sequence attends to cached positions 0..p of its slot.

    Only as much of the caches is read as the longest of the sequences has, in blocks whose number
    is decided at run time (online softmax: Milakov and Gimelshein 2018, arXiv 1805.02867).

    Args:
      q: [B, H, T, N]; k, v: [slots, K, S, N], the caches with the new tokens written.
      positions: int32 [B, T].
      rows: int32 [B], the slot of each sequence; None: sequence b has slot b.
    """
    B, H, T, N = q.shape
    K, S = k.shape[1:3]
    if S <= _SHORT_CACHE:
        if rows is not None:
            k, v = (x.at[rows].get(mode="clip") for x in (k, v))
        return _masked(q, k, v, jnp.arange(S)[None, None] <= positions[:, :, None])
    size = min(512, max(64, S // 8))
    queries = q.reshape(B, K, -1, N)
    limit = jnp.tile(positions[:, None], (1, H // K, 1)).reshape(B, 1, -1, 1)

    def block(cache: jax.Array, first: jax.Array) -> jax.Array:
        if rows is None:
            return jax.lax.dynamic_slice_in_dim(cache, first, size, 2)
        return jax.vmap(lambda row: jax.lax.dynamic_slice(
            cache, (row, 0, first, 0), (1, K, size, N))[0])(rows)

    def add(i: jax.Array, carry: tuple) -> tuple:
        largest, total, out = carry
        # The last block of a cache that is no multiple of it begins earlier, with keys seen before.
        first = jnp.minimum(i * size, S - size)
        place = (first + jnp.arange(size)).reshape(1, 1, 1, size)
        scores = jnp.matmul(queries, block(k, first).swapaxes(2, 3),
                            preferred_element_type=jnp.float32) * (1 / math.sqrt(N))
        scores = jnp.where((place <= limit) & (place >= i * size), scores, -1e30)
        new = jnp.maximum(largest, scores.max(-1, keepdims=True))
        keep, weights = jnp.exp(largest - new), jnp.exp(scores - new)
        mixed = jnp.matmul(weights.astype(v.dtype), block(v, first),
                           preferred_element_type=jnp.float32)
        return new, total * keep + weights.sum(-1, keepdims=True), out * keep + mixed

    column = jnp.zeros((B, K, queries.shape[2], 1), jnp.float32)
    blocks = jnp.minimum(jnp.max(positions) // size + 1, -(-S // size))
    _, total, out = jax.lax.fori_loop(
        0, blocks, add, (column - 1e30, column, jnp.zeros(queries.shape, jnp.float32)))
    return (out / total).astype(v.dtype).reshape(B, H, T, N)


def write_cache(
    cache: jax.Array, new: jax.Array, targets: jax.Array, rows: jax.Array | None = None
) -> jax.Array:
    """Puts new [B, K, C, N] at positions targets [B, C] of the rows of cache [slots, K, S, N].

    Targets of a row are different; those from S on are dropped, as are rows that do not exist.
    """
    if rows is not None:
        return cache.at[rows[:, None], :, targets].set(
            new.swapaxes(1, 2), mode="drop", unique_indices=True)

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
