"""From rollouts to the learner's arrays: the one place that knows both sides."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rime_jax.learner import credit as credit_lib
from rime_jax.rollout import metrics as rollout_metrics
from rime_jax.rollout.trajectory import Rollout, Sample, TaskRecord


def rewards_of(rollouts: Sequence[Rollout], siblings: int) -> credit_lib.Rewards:
    """Arrays [S, G, T] of whole groups.

    Positions that a failure took away, and groups that another process plays, are not `present`.
    """
    groups = 1 + max((rollout.group for rollout in rollouts), default=0)
    positions = max((len(rollout.stream.tasks) for rollout in rollouts), default=1)
    shape = (groups, siblings, positions)
    reward, performance, exploration = (np.full(shape, np.nan) for _ in range(3))
    well_formed, present = np.zeros(shape, bool), np.zeros(shape, bool)
    segments = np.zeros((groups, positions), int)
    for rollout in rollouts:
        for t, record in enumerate(rollout.tasks):
            at = (rollout.group, rollout.sibling, t)
            present[at] = True
            reward[at] = record.reward
            if record.performance is not None:
                performance[at] = record.performance
            if record.verdict is not None:
                exploration[at] = record.verdict.score
            well_formed[at] = record.written.malformed is None
        for t, task in enumerate(rollout.stream.tasks):
            segments[rollout.group, t] = task.segment
    return credit_lib.Rewards(reward, performance, exploration, well_formed, present, segments)


def whole(shares: Sequence[credit_lib.Rewards]) -> credit_lib.Rewards:
    """The rewards of all groups, from those of processes that played some of the groups each."""
    if len(shares) == 1:
        return shares[0]
    largest = np.max([share.reward.shape for share in shares], axis=0)
    merged = {}
    for field in dataclasses.fields(credit_lib.Rewards):
        parts = [getattr(share, field.name) for share in shares]
        shape = largest if parts[0].ndim == 3 else largest[[0, 2]]
        empty = np.nan if parts[0].dtype.kind == "f" else 0
        into = merged[field.name] = np.full(shape, empty, parts[0].dtype)
        for share, part in zip(shares, parts, strict=True):
            own = np.flatnonzero(share.present.any((1, 2)))
            into[own, ..., : part.shape[-1]] = part[own]
    return credit_lib.Rewards(**merged)


def samples_of(rollouts: Sequence[Rollout]) -> list[Sample]:
    """All samples, ACT and WRITE."""
    return [s for r in rollouts for record in r.tasks for s in (record.act, record.write)]


def light(rollouts: Sequence[Rollout], transcripts: bool) -> list[Rollout]:
    """Rollouts with all that metrics and records are made of, for another process.

    Of the samples that is the number of sampled tokens and their version: a thousandth of the size.
    Transcripts, most of the rest, are left out unless they are asked for.
    """
    def record_of(record: TaskRecord) -> TaskRecord:
        kept = record.transcript if transcripts else []
        return dataclasses.replace(record, act=_counted(record.act), write=_counted(record.write),
                                   transcript=kept)

    return [dataclasses.replace(r, tasks=[record_of(t) for t in r.tasks]) for r in rollouts]


def credit_metrics(
    rollouts: Sequence[Rollout], rewards: credit_lib.Rewards, credit: credit_lib.Credit
) -> dict[str, float]:
    """Whether the rewards measure the memory or luck (method section 6).

    Correlations are taken within groups: of the improvement w with the memory's length, its items,
    the judge's score, and the rewards before and after.
    """
    shape = rewards.reward.shape
    tokens, items = np.full(shape, np.nan), np.full(shape, np.nan)
    for rollout in rollouts:
        standing = 0
        for t, record in enumerate(rollout.tasks):
            tokens[rollout.group, rollout.sibling, t] = record.write.mask.sum()
            # A memory that was not taken over leaves the one before it standing.
            if record.memory_after == record.written.text:
                standing = len(record.written.items)
            items[rollout.group, rollout.sibling, t] = standing
    following = np.full(shape, np.nan)
    following[:, :, :-1] = rewards.performance[:, :, 1:]
    features = {
        "memory_tokens": tokens,
        "memory_items": items,
        "exploration": rewards.exploration,
        "last_performance": rewards.performance,
        "next_performance": following,
    }
    found = {
        f"credit/corr_improvement_{name}": rollout_metrics.within_group_correlation(
            credit.improvement, value
        )
        for name, value in features.items()
    }
    found |= {f"credit/zero_variance_{k}": v for k, v in credit.zero_variance.items()}
    found["credit/improvement"] = _nanmean(credit.improvement)
    found["credit/writer_reward"] = _nanmean(credit.writer_reward)
    found["credit/act_samples"] = float(credit.act_weight.sum())
    found["credit/write_samples"] = float(credit.write_weight.sum())
    return {name: float(value) for name, value in found.items() if not np.isnan(value)}


def _nanmean(x: np.ndarray) -> float:
    return float(np.nanmean(x)) if (~np.isnan(x)).any() else np.nan


def _counted(sample: Sample) -> Sample:
    sampled = sample.mask[sample.mask]
    return dataclasses.replace(sample, ids=np.zeros(0, np.int32), mask=sampled,
                               logprobs=np.zeros(0, np.float32))
