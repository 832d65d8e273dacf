"""What the learner and the sampler ask of a policy: pure functions of (params, tokens)."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

Params = Any


class Policy(Protocol):
    """A language model as pure functions. B sequences, T tokens, D features, V vocabulary.

    Attributes:
      config: the sizes.
      dtype: of activations; matrices are cast to it before they are used.
      attention: the kernel of full attention (`model.attention`).
      vocab_size: V.
      cuts: a decoding cache of n tokens serves also as one of its first m < n.
    """

    @property
    def config(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def attention(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def cuts(self) -> bool: ...

    def shapes(self) -> Any:
        """A tree like the parameters of `jax.ShapeDtypeStruct`."""

    def hf_layers(self, path: str) -> list[int]:
        """Layer numbers, in order, of a stacked parameter (`layers/q`); for weights in and out."""

    def hf_heads(self, path: str) -> tuple[int, tuple[int, ...]] | tuple[()]:
        """`heads` and `kinds` of `layout.Form`, of a parameter that has them; for weights in and
        out."""

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
        self, params: Params, cache: Any, tokens: jax.Array, start: jax.Array, count: jax.Array,
        rows: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """Feeds slots their next tokens: hidden states [B, C, D] and the new cache.

        Args:
          params: as `init` returns them, or each stack of layers as a tuple of layers.
          tokens: int32 [B, C]; the first `count[b]` of row b are real.
          start: int32 [B], tokens that row b's cache holds already.
          count: int32 [B], from 0 to C. What rows return beyond their count is undefined, and
            their cache is as if nothing beyond it had been fed.
          rows: int32 [B], the slot of each row, no slot twice; a number that is no slot stands for
            a row that is not there, with count 0. None: row b is slot b.
        """


def narrow(policy: Policy, params: Params) -> Params:
    """A copy of parameters with the matrices in the dtype of the policy's activations.

    The policies cast a matrix before each use, so that nothing they compute changes. Norms and the
    like stay as they are: some are used in float32.
    """

    def one(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        matrix = sum(axis != "layers" for axis in axes) > 1
        return jnp.copy(x.astype(policy.dtype) if matrix else x)

    return jax.tree.map(one, params, policy.logical_axes())
