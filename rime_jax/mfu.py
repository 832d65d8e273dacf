"""How much of what the devices can do an update uses: model-FLOPs utilisation (MFU)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rime_jax.aot import flops
from rime_jax.learner import batch as batch_lib


def update_flops(
    model: Any, batches: Mapping[str, Sequence[batch_lib.Batch]], learner: Any
) -> float:
    """FLOPs that the updates of an iteration need, without padding and without recomputation.

    Args:
      model: sizes of the policy (`policy.config`).
      batches: of this process.
      learner: the `learner` part of a config; says which passes without gradient there are.
    """
    # Forward, backward by activations and by parameters; and a forward pass each for the others.
    passes = 3 + (learner.kl_coef > 0) + (learner.old_logprobs == "learner")
    return sum(
        passes * tokens * flops.forward(model, keys).total
        for tokens, keys in map(_load, _all(batches))
    )


def utilisation(work: float, seconds: float, devices: int, peak: float) -> float:
    """Share of the devices' bfloat16 peak, FLOP/s each; the usual MFU, whatever the dtype."""
    return work / (seconds * devices * peak)


def _all(batches: Mapping[str, Sequence[batch_lib.Batch]]) -> Iterable[batch_lib.Batch]:
    return (batch for own in batches.values() for batch in own)


def _load(batch: batch_lib.Batch) -> tuple[int, float]:
    """(tokens, mean number of keys that one is compared with)."""
    used = batch.segments > 0
    tokens = int(used.sum())
    return tokens, float(batch.positions[used].astype(np.float64).mean() + 1) if tokens else 0.0
