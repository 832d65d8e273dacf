"""The gated delta rule and its short convolution: over packed sequences, and over a cached state.

Per value head, with a state S [N, E] that starts at 0 (Yang et al. 2024, "Gated Delta Networks"):

  S <- exp(g_t) S;   u_t = beta_t (v_t - S^T k_t);   S <- S + k_t u_t^T;   o_t = S^T q_t       (1)

In chunks (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule"): let S_0 be
the state before a chunk and G_i = g_1 + … + g_i within it. Unrolled, (1) reads

  S_i = exp(G_i) S_0 + sum_{j <= i} exp(G_i - G_j) k_j u_j^T                                   (2)

Token i is corrected by the decayed state exp(g_i) S_{i-1}, which is (2) with the sum over j < i
only. Put into u_i, this leaves a unit lower triangular system for the rows u_i of U (the WY form
of the product of the factors I - beta_i k_i k_i^T of (1)):

  (I + A) U = R,   A_ij = beta_i exp(G_i - G_j) k_i . k_j  for j < i,
                   r_i  = beta_i (v_i - exp(G_i) S_0^T k_i)                                    (3)

Outputs and the next chunk's S_0 then follow from (2) with three matrix products:

  o_i = exp(G_i) S_0^T q_i + sum_{j <= i} exp(G_i - G_j) (q_i . k_j) u_j
  S_C = exp(G_C) S_0 + sum_j exp(G_C - G_j) k_j u_j^T                                          (4)

Packed rows: where a segment starts the state is 0 again. So sums run over tokens of i's own segment
(in G_i too, which keeps long decays of other segments out of the rounding), and S_0 counts only for
tokens of the segment that it comes from. A masked exponent is set to -inf before the exponential: G
falls, so above the diagonal G_i - G_j would overflow, and inf * 0 would be the gradient.

Dimensions: B sequences, T tokens, K key heads, H value heads, R = H // K value heads that share a
key head, N key and query features, E value features, C tokens of a chunk, W convolution width, F
convolved features.
"""

import functools
import operator

import jax
import jax.numpy as jnp

# The default precision of accelerators rounds float32 factors to fewer bits. The state is a running
# sum over the whole sequence, and these products are a few percent of a layer's.
_PRECISION = jax.lax.Precision.HIGHEST


def chunked(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    segments: jax.Array,
    state0: jax.Array | None = None,
    chunk: int = 64,
) -> tuple[jax.Array, jax.Array]:
    """Outputs of (1) for whole packed sequences, by (3) and (4).

    Args:
      q, k: [B, T, K, N], normalised and scaled by the caller.
      v: [B, T, H, E]; value head h reads key head h // (H // K).
      log_decay: [B, T, H], g of (1): finite, at most 0.
      beta: [B, T, H], from 0 to 1. A token with log_decay and beta 0 leaves the state as it is.
      segments: int [B, T]; tokens of a segment are neighbours.
      state0: float32 [B, H, N, E], of the first token's segment; None: 0.
      chunk: C, a power of two. The backward pass keeps one state per chunk.

    Returns:
      [B, T, H, E] in v's dtype, and the state after the last token, float32 [B, H, N, E].

    Raises:
      ValueError: `chunk` is no power of two.
    """
    if chunk < 1 or chunk & (chunk - 1):
        raise ValueError(f"chunk = {chunk} is no power of two; the default is 64")
    B, T, K, N = k.shape
    H, E = v.shape[2:]
    C = min(chunk, 1 << (T - 1).bit_length())

    def chunks_of_heads(x: jax.Array, *heads: int) -> jax.Array:
        """[B, T, H, …] → [T / C, B, *heads, C, …]."""
        x = jnp.pad(x, [(0, 0), (0, -T % C)] + [(0, 0)] * (x.ndim - 2))
        x = x.reshape(B, -1, C, *heads, *x.shape[3:])
        return jnp.moveaxis(jnp.moveaxis(x, 1, 0), 2, 2 + len(heads))

    # The padding belongs to the last segment, with beta and log_decay 0.
    padded = jnp.pad(segments, [(0, 0), (0, -T % C)], mode="edge")
    inputs = (
        chunks_of_heads(q, K), chunks_of_heads(k, K), chunks_of_heads(v, K, H // K),
        chunks_of_heads(log_decay, K, H // K), chunks_of_heads(beta, K, H // K),
        padded.reshape(B, -1, C).swapaxes(0, 1),
    )
    state = jnp.zeros((B, H, N, E), jnp.float32) if state0 is None else state0
    (state, _), out = jax.lax.scan(
        jax.checkpoint(_chunk, prevent_cse=False),
        (state.reshape(B, K, H // K, N, E), segments[:, 0]), inputs,
    )
    out = jnp.moveaxis(jnp.moveaxis(out, 4, 2), 0, 1).reshape(B, -1, H, E)
    return out[:, :T], state.reshape(B, H, N, E)


def step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    beta: jax.Array,
    state: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Equation (1) for one token of each sequence.

    Args:
      q, k: [B, K, N]; v: [B, H, E]; log_decay, beta: [B, H], as for `chunked`.
      state: float32 [B, H, N, E].

    Returns:
      [B, H, E] in v's dtype, and the new state.
    """
    B, K, N = k.shape
    H, E = v.shape[1:]
    q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    values, log_decay, beta = (
        x.astype(jnp.float32).reshape(B, K, H // K, -1) for x in (v, log_decay, beta)
    )
    S = jnp.exp(log_decay)[..., None] * state.reshape(B, K, H // K, N, E)
    u = beta * (values - _einsum("bkn,bkgne->bkge", k, S))
    S = S + k[:, :, None, :, None] * u[:, :, :, None, :]
    out = _einsum("bkn,bkgne->bkge", q, S)
    return out.reshape(B, H, E).astype(v.dtype), S.reshape(B, H, N, E)


def convolve(x: jax.Array, weight: jax.Array, segments: jax.Array) -> jax.Array:
    """y_t = sum_i weight_i x_{t - W + 1 + i}, over tokens of t's own segment only.

    Args:
      x: [B, T, F]; weight: [W, F], the last row for the token itself.
      segments: int [B, T].
    """
    W, T = weight.shape[0], x.shape[1]
    total = x * weight[-1].reshape(1, 1, -1)
    for lag in range(1, min(W, T)):
        earlier = jnp.pad(x[:, :-lag], [(0, 0), (lag, 0), (0, 0)])
        # Without an earlier token the padding of x is 0, whatever the segment.
        same = jnp.pad(segments[:, :-lag], [(0, 0), (lag, 0)]) == segments
        total += jnp.where(same[..., None], earlier, 0) * weight[-1 - lag].reshape(1, 1, -1)
    return total


def convolve_cached(
    x: jax.Array, weight: jax.Array, window: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`convolve` for the next C tokens of sequences whose earlier ones are in a window.

    Args:
      x: [B, C, F]; the first `count[b]` tokens of row b are real.
      weight: [W, F].
      window: [B, W - 1, F], the x of the last tokens fed; 0 before the first.
      count: int32 [B], from 0 to C.

    Returns:
      [B, C, F] (undefined beyond the count), and the window after `count` tokens.
    """
    W, C = weight.shape[0], x.shape[1]
    row = jnp.concatenate([window, x.astype(window.dtype)], 1)
    total = functools.reduce(operator.add, (
        row[:, i : i + C] * weight[i].reshape(1, 1, -1) for i in range(W)))

    def last(row_SxF: jax.Array, n: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(row_SxF, n, W - 1)

    return total, jax.vmap(last)(row, count)


def _chunk(carry: tuple, inputs: tuple) -> tuple[tuple, jax.Array]:
    """One chunk: the carry is S_0 [B, K, R, N, E] and the segment [B] that it comes from."""
    S, origin_B = carry
    q, k, v, log_decay, beta, segment_BxC = inputs
    dtype = v.dtype
    q, k, v, log_decay, beta = (x.astype(jnp.float32) for x in (q, k, v, log_decay, beta))
    own_BxC = segment_BxC == origin_B[:, None]
    same = segment_BxC[:, :, None] == segment_BxC[:, None, :]
    before = (same & jnp.tri(same.shape[1], dtype=bool)[None])[:, None, None]
    # exp(G_i), times 0 where S_0 is not of token i's segment; and exp(G_i - G_j).
    total = _einsum("bij,bkgj->bkgi", before[:, 0, 0].astype(jnp.float32), log_decay)
    from_start = jnp.exp(total) * own_BxC[:, None, None]
    between = jnp.exp(jnp.where(before, total[..., :, None] - total[..., None, :], -jnp.inf))

    keys = _einsum("bkin,bkjn->bkij", k, k)[:, :, None]
    A = jnp.tril(beta[..., None] * between * keys, -1)
    R = beta[..., None] * (v - from_start[..., None] * _einsum("bkin,bkgne->bkgie", k, S))
    U = _matmul(_unit_lower_inverse(A), R)

    scores = _einsum("bkin,bkjn->bkij", q, k)[:, :, None] * between
    out = from_start[..., None] * _einsum("bkin,bkgne->bkgie", q, S) + _matmul(scores, U)
    to_end = between[..., -1, :, None]
    S = from_start[..., -1, None, None] * S + _einsum("bkin,bkgie->bkgne", k, to_end * U)
    return (S, segment_BxC[:, -1]), out.astype(dtype)


def _unit_lower_inverse(A: jax.Array) -> jax.Array:
    """(I + A)^-1 of strictly lower triangular A [..., n, n], n a power of two, by halves.

    All matrix products, which accelerators prefer to substitution row by row. A doubling product of
    (I + A^(2^m)) would be too, but its powers cancel only in exact arithmetic: with equal keys they
    reach 1e18 for 64 tokens.
    """
    n = A.shape[-1]
    if n == 1:
        return jnp.ones_like(A)
    half = n // 2
    both = _unit_lower_inverse(jnp.stack([A[..., :half, :half], A[..., half:, half:]]))
    upper, lower = both[0], both[1]
    corner = -_matmul(lower, _matmul(A[..., half:, :half], upper))
    top = jnp.concatenate([upper, jnp.zeros_like(upper)], -1)
    return jnp.concatenate([top, jnp.concatenate([corner, lower], -1)], -2)


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=_PRECISION)


def _einsum(subscripts: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, *operands, precision=_PRECISION)
