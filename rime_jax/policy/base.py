"""What the learner and the sampler ask of a policy: pure functions of (params, tokens)."""

from typing import Any, Protocol

import jax

Params = Any


class Policy(Protocol):
    """A language model as pure functions. B sequences, T tokens, D features, V vocabulary.

    Attributes:
      config: the sizes.
      dtype: of activations; matrices are cast to it before they are used.
    """

    config: Any
    dtype: Any
    vocab_size: int

    def shapes(self) -> Any:
        """A tree like the parameters of `jax.ShapeDtypeStruct`."""

    def hf_layers(self, path: str) -> list[int]:
        """Layer numbers, in order, of a stacked parameter (`layers/q`); for weights in and out."""

    def init(self, key: jax.Array) -> Params:
        """Random parameters: a nested dict of arrays, layers stacked on their first axis."""

    def logical_axes(self) -> Any:
        """A tree like the parameters whose leaves are tuples of logical axis names."""

    def forward(
        self, params: Params, tokens: jax.Array, positions: jax.Array, segments: jax.Array
    ) -> jax.Array:
        """Hidden states [B, T, D] after the final norm, of whole (packed) sequences.

        Args:
          tokens: int32 [B, T].
          positions: int32 [B, T], from 0 within each segment.
          segments: int32 [B, T]; a token attends to earlier tokens of its own segment. 0: padding.
        """

    def logits(self, params: Params, hidden: jax.Array) -> jax.Array:
        """float32 [..., V] from hidden states [..., D].

        Reads only parameters on the first level of the tree that have an axis named `vocab`.
        """

    def init_cache(self, slots: int, tokens: int) -> Any:
        """An empty decoding cache for `slots` sessions of at most `tokens` tokens."""

    def extend(
        self, params: Params, cache: Any, tokens: jax.Array, start: jax.Array, count: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Feeds each slot its next tokens: hidden states [B, C, D] and the new cache.

        Args:
          tokens: int32 [B, C]; the first `count[b]` of row b are real.
          start: int32 [B], tokens that row b's cache holds already.
          count: int32 [B], from 0 to C. What rows return beyond their count is undefined, and
            their cache is as if nothing beyond it had been fed.
        """
