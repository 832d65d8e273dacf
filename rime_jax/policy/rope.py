"""Scalings of rotary frequencies, under the names and in the form of Hugging Face's config.json."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from rime_jax.policy import sizes


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """`linear`: positions are divided by `factor` (position interpolation, Chen et al. 2023)."""

    factor: float
    amplitude = 1.0

    def __post_init__(self):
        sizes.require_positive(self)

    def scale(self, frequencies: jax.Array, theta: float) -> jax.Array:
        """Frequencies [R / 2] in radians per token, float32; unscaled theta ** (-2 j / R)."""
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
    amplitude = 1.0

    def __post_init__(self):
        sizes.require_positive(self)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(f"rope scaling llama3: high_freq_factor = {self.high_freq_factor} "
                             f"must be above low_freq_factor = {self.low_freq_factor}")

    def scale(self, frequencies: jax.Array, theta: float) -> jax.Array:
        """As above."""
        turns = self.original_max_position_embeddings * frequencies / (2 * jnp.pi)
        width = self.high_freq_factor - self.low_freq_factor
        kept = jnp.clip((turns - self.low_freq_factor) / width, 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """`yarn`: fast features are kept, slow ones divided by `factor`, and sin and cos grow a little.

    Peng et al. 2023; Qwen3's way to contexts beyond those of its training. Between the feature that
    turns `beta_fast` times within the original context and the one that turns `beta_slow` times
    (both rounded outwards to whole features with `truncate`) the two are mixed linearly in the
    feature's index.

    Attributes:
      attention_factor: what sin and cos are multiplied by; None: 1 + log(factor) / 10.

    Raises:
      ValueError: beta_fast is not above beta_slow.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self):
        sizes.require_positive(self)
        given = self.attention_factor
        if given is not None and not (isinstance(given, (int, float)) and 0 < given < math.inf):
            raise ValueError(f"attention_factor = {given!r} must be a positive float")
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"rope scaling yarn: beta_fast = {self.beta_fast} must be above "
                             f"beta_slow = {self.beta_slow}")

    @property
    def amplitude(self) -> float:
        """Of sin and cos."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 1 + 0.1 * math.log(max(self.factor, 1.0))

    def scale(self, frequencies: jax.Array, theta: float) -> jax.Array:
        """As above."""
        half = frequencies.shape[0]

        def feature(turns: float) -> float:
            """Index of the feature that turns so often within the original context."""
            length = self.original_max_position_embeddings / (2 * math.pi * turns)
            return half * math.log(length) / math.log(theta)

        first, last = feature(self.beta_fast), feature(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        # The upper bound counts both halves, as in the published code.
        first, last = max(first, 0), min(last, 2 * half - 1)
        width = (last - first) or 1e-3
        slow = jnp.clip((jnp.arange(half, dtype=jnp.float32) - first) / width, 0, 1)
        return frequencies * (1 - slow + slow / self.factor)


Scaling = LinearScaling | Llama3Scaling | YarnScaling

# `rope_type` of a config.json; `default` has none.
SCALINGS = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
