"""The loss of one micro-batch as sums and denominators (method section 4).

Everything here is a pure function of arrays [R, L] in which entry t speaks of predicting token t.
Sums and denominators are added over micro-batches and devices before anything is divided, so that
packing, micro-batching and sharding never change a result.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rime_jax.learner import batch as batch_lib

# Bounds of the bins in which tokens are counted by their ratio; what is beyond counts at the end.
RATIO_EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.001, 1.01, 1.02, 1.05, 1.1, 1.2,
               1.28, 1.5, 2.0)


class Terms(NamedTuple):
    """What micro-batches add up.

    Attributes:
      pairs: name → (sum, denominator), both scalars; the metric is their quotient.
      maxima: name → scalar; combined with max. All are at least 0.
      ratios: [len(RATIO_EDGES) - 1], trained tokens by their ratio.
    """

    pairs: dict[str, tuple[jax.Array, jax.Array]]
    maxima: dict[str, jax.Array]
    ratios: jax.Array


def add_terms(a: Terms, b: Terms) -> Terms:
    """The terms of both together."""
    return Terms(jax.tree.map(jnp.add, a.pairs, b.pairs),
                 jax.tree.map(jnp.maximum, a.maxima, b.maxima), a.ratios + b.ratios)


def objective(
    logprobs: jax.Array,
    entropy: jax.Array,
    micro: batch_lib.Batch,
    old: jax.Array | None,
    reference: jax.Array | None,
    config: Any,
) -> tuple[jax.Array, Terms]:
    """The loss sum to differentiate, and the terms to log; `loss` among them has the denominator.

    Args:
      logprobs: [R, L], of the parameters being trained.
      entropy: [R, L], of the same distributions; not differentiated.
      micro: a batch of arrays [R, L].
      old: [R, L], log-probabilities of the learner before the first update of the iteration; None:
        the sampler's are the denominator of the ratio.
      reference: [R, L], log-probabilities of the initial policy; None: no KL.
      config: the `learner` part of a config.
    """
    loss = policy_loss(logprobs, micro.behaviour if old is None else old, micro.advantages, config)
    if old is not None:
        loss = loss * importance_weights(old, micro.behaviour, config)
    if reference is not None:
        loss += config.kl_coef * kl(logprobs, reference, config.kl_estimator,
                                    config.log_ratio_clamp)
    loss_sum = masked_sum(loss, micro.weights)
    terms = _terms(jax.lax.stop_gradient(logprobs), entropy, micro, old, reference, config)
    terms.pairs["loss"] = (loss_sum, micro.weights.sum())
    return loss_sum, terms


def policy_loss(
    logprobs: jax.Array, old: jax.Array, advantages: jax.Array, config: Any
) -> jax.Array:
    """-min(ratio A, clip(ratio, 1 - low, 1 + high) A) of each token (PPO; DAPO's two bounds)."""
    ratio = _ratio(logprobs, old, config.log_ratio_clamp)
    clipped = jnp.clip(ratio, 1 - config.clip_low, 1 + config.clip_high)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def importance_weights(old: jax.Array, behaviour: jax.Array, config: Any) -> jax.Array:
    """min(exp(old - behaviour), cap), constants that correct for a sampler unlike the learner."""
    ratio = _ratio(old, behaviour, config.log_ratio_clamp)
    return jax.lax.stop_gradient(jnp.minimum(ratio, config.importance_cap))


def kl(logprobs: jax.Array, reference: jax.Array, estimator: str, clamp: float) -> jax.Array:
    """An estimate of KL(policy || reference) from each sampled token (Schulman 2020).

    With d = log policy - log reference, for tokens sampled from the policy:
      k1 = d: unbiased, but its gradient is zero in expectation (pure noise as a loss).
      k2 = d^2 / 2: biased, but its gradient is that of KL(policy || reference).
      k3 = exp(-d) - 1 + d: unbiased and never negative; its gradient is that of
        KL(reference || policy), which agrees with the other to second order near the reference.
    `clamp` bounds d before exp.
    """
    d = logprobs - reference
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d**2 / 2
    d = jnp.clip(d, -clamp, clamp)
    return jnp.exp(-d) - 1 + d


def token_logprobs(
    logits: Callable[[Any, jax.Array], jax.Array], head: Any, hidden: jax.Array,
    tokens: jax.Array, vocab_size: int, block: int,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each token given those before it, and the entropy it was drawn with.

    Args:
      logits: float32 [..., n] from n rows of `head` and hidden states [..., D].
      head: tree of arrays whose first axis is the vocabulary.
      hidden: [R, L, D].
      tokens: int32 [R, L].
      vocab_size: V.
      block: entries of the vocabulary whose logits exist at one time (and are computed again by the
        backward pass). V or more: all at once.

    Returns:
      Two float32 [R, L]; column 0 is 0, and what crosses from one segment into the next means
      nothing.
    """
    targets = jnp.roll(tokens, -1, axis=1)
    found = (_whole(logits(head, hidden), targets) if block >= vocab_size
             else _by_blocks(logits, head, hidden, targets, vocab_size, block))
    logprobs, entropy = (jnp.pad(x[:, :-1], ((0, 0), (1, 0))) for x in found)
    return logprobs, entropy


def head_block(tokens: int, vocab_size: int, entries: int = 1 << 26) -> int:
    """Entries of the vocabulary whose logits of `tokens` fit `entries`; V where all of them do.

    A multiple of 256, which matrix units and tensor-sharded vocabularies like. `tokens` counts
    those of one device; 2^26 float32 entries are 256 MiB.
    """
    if tokens * vocab_size <= entries:
        return vocab_size
    return max(256, entries // tokens // 256 * 256)


def masked_sum(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum of weights * x over the entries with a weight, whatever the others hold."""
    return jnp.sum(jnp.where(weights > 0, x, 0.0) * weights)


def masked_max(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Largest x among the entries with a weight; 0 where there is none or all are negative."""
    return jnp.max(jnp.where(weights > 0, x, 0.0), initial=0.0)


def _whole(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    log_p = jax.nn.log_softmax(logits)
    # A gather's gradient is a scatter, slow on every backend and unfit for a sharded vocabulary.
    picked = jnp.sum(log_p * jax.nn.one_hot(targets, log_p.shape[-1], dtype=log_p.dtype), -1)
    constant = jax.lax.stop_gradient(log_p)
    return picked, -jnp.sum(jnp.exp(constant) * constant, -1)


def _by_blocks(
    logits: Callable[[Any, jax.Array], jax.Array], head: Any, hidden: jax.Array,
    targets: jax.Array, vocab_size: int, block: int,
) -> tuple[jax.Array, jax.Array]:
    """`_whole` with the sums of the softmax carried from block to block of the vocabulary.

    Blocks of tokens instead would each read the whole head, and add to a gradient of its size.
    """
    n = -(-vocab_size // block)
    # Entry i of block j is i n + j: what tensor-sharding gives a device is in all blocks alike.
    blocks = jax.tree.map(lambda x: jnp.moveaxis(jnp.pad(
        x, [(0, n * block - vocab_size)] + [(0, 0)] * (x.ndim - 1),
    ).reshape(block, n, *x.shape[1:]), 1, 0), head)
    # Wide outside of the loop, so that the blocks' gradients are added in float32.
    wide, entry = hidden.astype(jnp.float32), jnp.arange(block).reshape(1, 1, -1)

    def add(carry: tuple, at: tuple) -> tuple[tuple, None]:
        (peak, total, moment, picked), (j, rows) = carry, at
        scores = logits(rows, wide.astype(hidden.dtype))
        if n * block > vocab_size:
            scores = jnp.where(entry * n + j < vocab_size, scores, -1e30)
        constant = jax.lax.stop_gradient(scores)
        higher = jnp.maximum(peak, constant.max(-1))
        rescale, shares = jnp.exp(peak - higher), jnp.exp(scores - higher[..., None])
        total = total * rescale + shares.sum(-1)
        moment = moment * rescale + jnp.sum(jax.lax.stop_gradient(shares) * constant, -1)
        picked += jnp.sum(jnp.where(entry * n + j == targets[..., None], scores, 0.0), -1)
        return (higher, total, moment, picked), None

    zero = jnp.zeros(targets.shape, jnp.float32)
    (peak, total, moment, picked), _ = jax.lax.scan(
        jax.checkpoint(add, prevent_cse=False), (zero - jnp.inf, zero, zero, zero),
        (jnp.arange(n), blocks))
    log_total = peak + jnp.log(total)
    return picked - log_total, jax.lax.stop_gradient(log_total - moment / total)


def _ratio(logprobs: jax.Array, old: jax.Array, clamp: float) -> jax.Array:
    return jnp.exp(jnp.clip(logprobs - old, -clamp, clamp))


def _terms(
    logprobs: jax.Array,
    entropy: jax.Array,
    micro: batch_lib.Batch,
    old: jax.Array | None,
    reference: jax.Array | None,
    config: Any,
) -> Terms:
    """Means over trained tokens, of both roles together and of each."""
    before = micro.behaviour if old is None else old
    ratio = _ratio(logprobs, before, config.log_ratio_clamp)
    gap = jnp.abs((logprobs if old is None else old) - micro.behaviour)
    low, high = 1 - config.clip_low, 1 + config.clip_high
    values = {
        "entropy": entropy,
        "clip_low": ((ratio < low) & (micro.advantages < 0)).astype(jnp.float32),
        "clip_high": ((ratio > high) & (micro.advantages > 0)).astype(jnp.float32),
        "approx_kl": kl(before, logprobs, "k3", config.log_ratio_clamp),
        "logprob_gap": gap,
    }
    if reference is not None:
        values["kl_init"] = kl(logprobs, reference, "k3", config.log_ratio_clamp)
    if old is not None:
        values["importance_weight"] = importance_weights(old, micro.behaviour, config)
    trained = (micro.weights > 0).astype(jnp.float32)
    pairs = {name: (masked_sum(x, trained), trained.sum()) for name, x in values.items()}
    for role, code in batch_lib.ROLES.items():
        own = trained * (micro.roles == code)
        for name in ("entropy", "approx_kl"):
            pairs[f"{name}_{role}"] = (masked_sum(values[name], own), own.sum())
    return Terms(pairs, {"ratio_max": masked_max(ratio, trained),
                         "logprob_gap_max": masked_max(gap, trained)}, _counts(ratio, trained))


def _counts(ratio: jax.Array, weights: jax.Array) -> jax.Array:
    # Tokens below each inner bound, and all of them: sums of rows that XLA fuses with the ratio.
    below = [masked_sum((ratio < edge).astype(jnp.float32), weights) for edge in RATIO_EDGES[1:-1]]
    return jnp.diff(jnp.stack([jnp.zeros(()), *below, weights.sum()]))
