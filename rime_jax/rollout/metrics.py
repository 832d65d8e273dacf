"""Curves of the rollouts of one iteration: what method section 6, asks to be measured.

Positions are counted from 1 in the names. Values that do not exist this time are left out.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from rime_jax import memory, streams
from rime_jax.judge.base import CRITERIA
from rime_jax.rollout.trajectory import INFRASTRUCTURE, Rollout, Status, TaskRecord

MemoryTruth = Callable[[streams.Task, Sequence[memory.Item]], dict[str, float]]

# Bounds of the previous reward (on the scale of 1) by which the malformed rate is split: a writer
# that is paid a signed difference learns to break memories after good tasks.
_PREVIOUS = ((-np.inf, 0.2, "low"), (0.2, 0.5, "middle"), (0.5, np.inf, "high"))


def rollout_metrics(
    rollouts: Sequence[Rollout],
    parse_items: Callable[[str], tuple[list[memory.Item], str | None]],
    memory_truth: MemoryTruth | None = None,
) -> dict[str, float]:
    """All scalars of the rollouts.

    Args:
      rollouts: of one iteration.
      parse_items: the grammar of the memory.
      memory_truth: the domain's own measure of what a memory knows; for the logs only.
    """
    records = [record for rollout in rollouts for record in rollout.tasks]
    found = _failures(rollouts, records)
    if not records:
        return found
    found |= _actor(records)
    found |= _memories(records, parse_items, memory_truth)
    found |= _exploration(records)
    found |= _by_position(rollouts)
    found |= _by_place_in_segment(rollouts)
    found |= _by_exposure(rollouts)
    found["performance/improvement"] = _mean(improvement(r) for r in rollouts)
    return {name: float(value) for name, value in found.items() if not np.isnan(value)}


def improvement(rollout: Rollout) -> float:
    """Mean performance of the later half of the stream minus that of the earlier (section 5)."""
    values = [np.nan if r.performance is None else r.performance for r in rollout.tasks]
    half = len(rollout.stream.tasks) // 2
    return _mean(values[half:]) - _mean(values[:half]) if half else np.nan


def within_group_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson correlation of two [S, G, T] arrays after taking out each group's mean.

    Pairs with a nan are left out. nan where nothing varies.
    """
    valid = ~(np.isnan(x) | np.isnan(y))
    count = np.maximum(valid.sum(1, keepdims=True), 1)

    def centred(a: np.ndarray) -> np.ndarray:
        filled = np.where(valid, a, 0.0)
        return np.where(valid, a - filled.sum(1, keepdims=True) / count, 0.0)

    a, b = centred(x), centred(y)
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale > 0 else np.nan


def _failures(rollouts: Sequence[Rollout], records: Sequence[TaskRecord]) -> dict[str, float]:
    """Counts of what was not the policy's fault; every status always has its curve."""
    lost = collections.Counter(r.failure for r in rollouts if r.failure is not None)
    mended: collections.Counter[Status] = collections.Counter()
    for rollout in rollouts:
        mended.update(rollout.retried)
    found: dict[str, float] = {}
    for status in sorted(INFRASTRUCTURE):
        if status is Status.JUDGE_UNAVAILABLE:
            unavailable = sum(r.judge_status is status for r in records)
            found[f"failures/{status.value}"] = unavailable
        else:
            found[f"failures/{status.value}"] = lost[status]
            found[f"failures/retried/{status.value}"] = mended[status]
    return found


def _actor(records: Sequence[TaskRecord]) -> dict[str, float]:
    statuses = collections.Counter(record.status for record in records)
    found = {
        f"status/{status.value}": statuses[status] / len(records)
        for status in Status if status not in INFRASTRUCTURE
    }
    errors: collections.Counter[str] = collections.Counter()
    for record in records:
        errors.update(record.format_errors)
    turns = sum(record.turns for record in records)
    found |= {f"format_errors/{reason}": n for reason, n in errors.items()}
    found["format_errors/per_turn"] = errors.total() / max(turns, 1)
    found["act/turns"] = turns / len(records)
    found["act/tokens"] = _mean(int(record.act.mask.sum()) for record in records)
    found["reward/mean"] = _mean(record.reward for record in records)
    found["performance/mean"] = _mean(
        record.performance for record in records if record.performance is not None
    )
    return found | _means("env", [record.metrics for record in records])


def _memories(
    records: Sequence[TaskRecord],
    parse_items: Callable[[str], tuple[list[memory.Item], str | None]],
    memory_truth: MemoryTruth | None,
) -> dict[str, float]:
    malformed = collections.Counter(r.written.malformed for r in records)
    well_formed = malformed.pop(None, 0)
    found = {f"memory/malformed/{reason}": n / len(records) for reason, n in malformed.items()}
    found["memory/well_formed"] = well_formed / len(records)
    for low, high, name in _PREVIOUS:
        found[f"memory/malformed_after_{name}_reward"] = _mean(
            r.written.malformed is not None for r in records
            if r.performance is not None and low <= r.performance < high
        )
    found["memory/tokens"] = _mean(int(r.write.mask.sum()) for r in records)
    # What counts is what the next task sees, which is not always what was written.
    before = [parse_items(r.memory_before)[0] for r in records]
    after = [parse_items(r.memory_after)[0] for r in records]
    found["memory/items"] = _mean(len(items) for items in after)
    for name, measure in (("exact", memory.retention_exact), ("fuzzy", memory.retention_fuzzy)):
        shares = (measure(old, new) for old, new in zip(before, after, strict=True))
        found[f"memory/retention_{name}"] = _mean(s for s in shares if s is not None)
    if memory_truth is not None:
        found |= _means("memory", [
            memory_truth(r.task, items) for r, items in zip(records, after, strict=True)
        ])
    return found


def _exploration(records: Sequence[TaskRecord]) -> dict[str, float]:
    verdicts = [r.verdict for r in records if r.verdict is not None]
    found = {"exploration/score": _mean(v.score for v in verdicts)}
    for i, criterion in enumerate(CRITERIA):
        found[f"exploration/{criterion}"] = _mean(v.criteria[i] for v in verdicts)
    return found


def _by_position(rollouts: Sequence[Rollout]) -> dict[str, float]:
    columns: dict[str, list[float]] = collections.defaultdict(list)
    for rollout in rollouts:
        for t, record in enumerate(rollout.tasks, start=1):
            columns[f"reward/at_{t}"].append(record.reward)
            if record.performance is not None:
                columns[f"performance/at_{t}"].append(record.performance)
            if record.verdict is not None:
                columns[f"exploration/at_{t}"].append(record.verdict.score)
    return {name: _mean(values) for name, values in columns.items()}


def _by_place_in_segment(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Places count from 1 in each segment; streams of one segment have those of the stream."""
    columns: dict[str, list[float]] = collections.defaultdict(list)
    # Rewards of the siblings of a group for the same task.
    groups: dict[tuple[int, int, int], list[float]] = collections.defaultdict(list)
    for rollout in rollouts:
        places: collections.Counter[int] = collections.Counter()
        for t, record in enumerate(rollout.tasks):
            places[record.task.segment] += 1
            k = places[record.task.segment]
            columns[f"segment/solved_at_{k}"].append(record.status is Status.SOLVED)
            if record.performance is not None:
                columns[f"segment/performance_at_{k}"].append(record.performance)
            groups[k, rollout.group, t].append(record.reward)
    for (k, *_), rewards in groups.items():
        if len(rewards) > 1:
            columns[f"segment/gradient_at_{k}"].append(max(rewards) > min(rewards))
    return {name: _mean(values) for name, values in columns.items()}


def _by_exposure(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Weights can memorise tasks: how those do that are met for the first time, and the others."""
    columns: dict[str, list[float]] = {"first": [], "repeated": []}
    for rollout in rollouts:
        own = columns["repeated" if rollout.stream.info.get("pass", 0) else "first"]
        own += [r.performance for r in rollout.tasks if r.performance is not None]
    return {f"exposure/{name}_performance": _mean(values) for name, values in columns.items()}


def _means(group: str, measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each name over those that have it: tasks need not all measure the same."""
    columns: dict[str, list[float]] = collections.defaultdict(list)
    for values in measured:
        for name, value in values.items():
            columns[f"{group}/{name}"].append(value)
    return {name: _mean(values) for name, values in columns.items()}


def _mean(values: Iterable[float]) -> float:
    values = [v for v in values if not np.isnan(v)]
    return float(np.mean(values)) if values else np.nan
