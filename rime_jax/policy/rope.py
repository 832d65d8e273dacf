"""Scalings of rotary frequencies, under the names and in the form of Hugging Face's config.json."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """`linear`: positions are divided by `factor` (position interpolation, Chen et al. 2023)."""

    factor: float

    def scale(self, frequencies: jax.Array) -> jax.Array:
        """Frequencies [R / 2] in radians per token, float32."""
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """`llama3`: only features that turn slowly are slowed down (Llama 3.1).

    A feature that turns more than `high_freq_factor` times within the original context is kept, one
    that turns less than `low_freq_factor` times is divided by `factor`; between them the two are
    mixed linearly in the number of turns.

    Raises:
      ValueError: high_freq_factor is not above low_freq_factor.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self):
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(f"rope scaling llama3: high_freq_factor = {self.high_freq_factor} "
                             f"must be above low_freq_factor = {self.low_freq_factor}")

    def scale(self, frequencies: jax.Array) -> jax.Array:
        """Frequencies [R / 2] in radians per token, float32."""
        turns = self.original_max_position_embeddings * frequencies / (2 * jnp.pi)
        width = self.high_freq_factor - self.low_freq_factor
        kept = jnp.clip((turns - self.low_freq_factor) / width, 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


Scaling = LinearScaling | Llama3Scaling

# `rope_type` of a config.json; `default` has none.
SCALINGS = {"linear": LinearScaling, "llama3": Llama3Scaling}
