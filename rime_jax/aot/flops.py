"""Floating-point operations of the policies, counted from their sizes.

A product of [m, k] and [k, n] counts 2 m k n; what is not a matrix product is not counted. XLA's
count cannot be used: it takes the body of a loop once, and a Pallas kernel for nothing.
"""

import dataclasses
from typing import Any

from rime_jax.policy import qwen3_5

# Bfloat16 passes of the matrix unit for a float32 product at the highest precision, which the
# delta rule asks for.
HIGHEST_PASSES = 6

# Tokens of a chunk of the delta rule (its default).
_CHUNK = 64


@dataclasses.dataclass(frozen=True)
class Work:
    """FLOPs of some tokens by what they are for.

    Attributes:
      dense: products with the layers' matrices.
      attention: queries with keys, weights with values.
      delta: the delta rule.
      head: logits.
    """

    dense: float
    attention: float
    delta: float
    head: float

    @property
    def total(self) -> float:
        return self.dense + self.attention + self.delta + self.head

    def times(self, dense: float, attention: float, delta: float, head: float) -> "Work":
        """Each part by its factor."""
        return Work(self.dense * dense, self.attention * attention, self.delta * delta,
                    self.head * head)


def forward(config: Any, keys: float, decoding: bool = False) -> Work:
    """Of one token, forward.

    Args:
      config: a `Qwen3Config` or `Qwen3_5Config`.
      keys: mean number of keys that a token is compared with.
      decoding: token by token (the delta rule then has no chunks).
    """
    D, F = config.hidden_size, config.intermediate_size
    q = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    feed_forward = 3 * D * F
    full = D * q + 2 * D * kv + q * D + feed_forward
    layers, linear, delta, gate = config.num_hidden_layers, 0, 0.0, 0
    if isinstance(config, qwen3_5.Qwen3_5Config):
        linear = config.kinds.count(qwen3_5.LINEAR)
        gate = D * q
        delta = linear * (_delta_step(config) if decoding else _delta_chunked(config))
    attending = layers - linear
    return Work(
        dense=2.0 * (attending * (full + gate) + linear * (_linear_matrices(config) + feed_forward
                                                            if linear else 0)),
        attention=4.0 * attending * q * keys,
        delta=delta,
        head=2.0 * D * config.vocab_size,
    )


def model_update(work: Work) -> Work:
    """Forward and backward without anything computed twice: what MFU is measured by."""
    return work.times(3, 3, 3, 3)


def executed_update(work: Work, remat: str, head_in_blocks: bool, fused: bool) -> Work:
    """Forward and backward as the learner's program computes them.

    Args:
      work: forward.
      remat: one of `policy.layers.REMATS`, which says what is not computed once more.
      head_in_blocks: the logits are computed again too.
      fused: the attention kernel computes its weights again in the backward pass, five products
        for the forward's two.
    """
    again = remat != "none"
    kept = fused and remat != "layer"
    return executed_forward(work.times(
        3 + (again and remat != "matmuls"),
        (3.5 if fused else 3) + (again and not kept),
        # Each chunk is computed again beside the layer.
        4 + again,
        4 if head_in_blocks else 3,
    ))


def executed_forward(work: Work) -> Work:
    """As the matrix unit sees it, in bfloat16 products."""
    return work.times(1, 1, HIGHEST_PASSES, 1)


def _linear_matrices(c: Any) -> int:
    keys, values = c.linear_features
    return c.hidden_size * (2 * keys + values + 2 * values + 2 * c.linear_num_value_heads)


def _delta_chunked(c: Any) -> float:
    """Per token: equations (3) and (4) of policy/delta_rule.py."""
    J, H = c.linear_num_key_heads, c.linear_num_value_heads
    M, E, C = c.linear_key_head_dim, c.linear_value_head_dim, _CHUNK
    per_key_head = 2 * 2 * C * M
    # Keys and queries with the state and its update, two products of chunks, the sums of decays,
    # and the inverse by halves.
    inverse = sum(n * n / 2 for n in _halves(C))
    per_value_head = 3 * 2 * M * E + 2 * 2 * C * E + 2 * C + inverse
    return J * per_key_head + H * per_value_head


def _halves(n: int) -> list[int]:
    return [] if n < 2 else [n, *_halves(n // 2)]


def _delta_step(c: Any) -> float:
    """Per token: equation (1)."""
    return 4.0 * c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim
