"""The metrics of an iteration, from what each process knows of it."""

import collections
import dataclasses
from collections.abc import Sequence

import jax

from rime_jax import mfu, parts, training_data
from rime_jax.aot import hardware
from rime_jax.learner import credit as credit_lib
from rime_jax.rollout import metrics as rollout_metrics
from rime_jax.rollout.trajectory import Rollout


@dataclasses.dataclass(frozen=True)
class Share:
    """What one process knows of an iteration.

    Attributes:
      rollouts: of its groups; `training_data.light` ones suffice.
      seconds: `time/…`; the slowest process counts.
      sampler: what its sampler tells; the largest counts.
      sums: what adds up over the processes: `judge/…`, `time/judge_s`, and `generated` and
        `trained` tokens and `flops` of the updates, of which rates are made.
    """

    rollouts: list[Rollout]
    seconds: dict[str, float]
    sampler: dict[str, float]
    sums: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Iteration:
    """All rollouts of an iteration, group by group, what they earned, and the metrics."""

    rollouts: list[Rollout]
    credit: credit_lib.Credit
    metrics: dict[str, float]


def iteration(built: parts.Parts, step: int, shares: Sequence[Share]) -> Iteration:
    """Merges what the processes know; the numbers do not depend on who played what."""
    config = built.config
    rollouts = sorted((r for share in shares for r in share.rollouts),
                      key=lambda r: (r.group, r.sibling))
    rewards = training_data.rewards_of(rollouts, config.rollout.group_size)
    credit = credit_lib.credit(rewards, config.reward)
    found = rollout_metrics.rollout_metrics(
        rollouts, built.domain.memory_format.parse_items, built.domain.memory_truth)
    found |= training_data.credit_metrics(rollouts, rewards, credit)
    versions = [s.version for s in training_data.samples_of(rollouts) if s.mask.any()]
    if versions:
        found["learner/oldest_token_lag"] = step - 1 - min(versions)
    return Iteration(rollouts, credit, found | _rates(shares))


def _rates(shares: Sequence[Share]) -> dict[str, float]:
    largest = [share.seconds | share.sampler for share in shares]
    found = {name: max(own[name] for own in largest) for name in largest[0]}
    sums: collections.Counter[str] = collections.Counter()
    for share in shares:
        sums.update(share.sums)
    generated, trained, work = (sums.pop(name) for name in ("generated", "trained", "flops"))
    found |= sums
    update_s = found["time/update_s"]
    found["time/generated_tokens_per_s"] = generated / found["time/rollout_s"]
    found["time/trained_tokens_per_s"] = trained / update_s
    peak = hardware.peak_flops(jax.devices()[0].device_kind)
    if peak is not None:
        found["time/mfu"] = mfu.utilisation(work, update_s, jax.device_count(), peak)
    return found
