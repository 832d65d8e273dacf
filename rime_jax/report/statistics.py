"""The numbers of the report that no run has written down: they are computed from rollouts.

Rollouts are rows of sample files (`tracking.texts.sample_rows`), each with a `step` added by the
reader. Standard errors are those of means of independent groups (streams), since siblings of one
stream share its difficulty.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rime_jax.report.dumps import Row
from rime_jax.tracking.values import is_number


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean over n independent values; `se` is its standard error, nan with one value."""

    mean: float
    se: float
    n: int


@dataclasses.dataclass(frozen=True)
class Position:
    """All tasks at one position of a segment.

    Attributes:
      position: from 1, within the segment.
      passed: fraction of tasks with status solved.
      reward, performance: nan where no task has one.
      groups: groups with two rewards or more; the fractions below are of these.
      with_gradient: groups whose rewards differ.
      all_passed, mixed, none_passed: groups by how many of their siblings solved the task.
    """

    position: int
    passed: Mean
    reward: Mean
    performance: Mean
    groups: int
    with_gradient: float
    all_passed: float
    mixed: float
    none_passed: float


def mean(values: Iterable[float]) -> Mean:
    """Mean and standard error (sample deviation / sqrt n); nan values are left out."""
    found = np.array([v for v in values if not math.isnan(v)], np.float64)
    if not found.size:
        return Mean(math.nan, math.nan, 0)
    se = found.std(ddof=1) / math.sqrt(found.size) if found.size > 1 else math.nan
    return Mean(float(found.mean()), float(se), int(found.size))


def by_position(rows: Iterable[Row], std_floor: float) -> list[Position]:
    """Position curves over all groups of the rows.

    Args:
      std_floor: `reward.std_floor`: a group whose rewards deviate less has no gradient.
    """
    groups: dict[tuple, list[Row]] = collections.defaultdict(list)
    starts = _segment_starts(rows := [r for r in rows if is_number(r.get("reward"))])
    for row in rows:
        place = row["position"] - starts[_segment(row)] + 1
        groups[(*_segment(row), place)].append(row)
    columns: dict[int, list[list[Row]]] = collections.defaultdict(list)
    for key, siblings in groups.items():
        columns[key[-1]].append(siblings)
    return [_position(place, columns[place], std_floor) for place in sorted(columns)]


def hardest(positions: Sequence[Position], count: int = 2) -> list[Position]:
    """The positions that are passed least often, in the order of the segment."""
    chosen = sorted(positions, key=lambda p: (p.passed.mean, -p.position))[:count]
    return sorted(chosen, key=lambda p: p.position)


def exploration_score(row: Row) -> float:
    """e_t in [0, 1], the sum of the judge's four criteria over 8; nan without a verdict."""
    criteria = row.get("criteria")
    return math.nan if criteria is None else sum(criteria) / 8


def improvement(rows: Iterable[Row]) -> Mean:
    """Mean performance of the later half of a stream minus that of the earlier, over streams.

    The middle task of an odd number belongs to the later half, as in `rollout.metrics`.
    """
    rollouts: dict[tuple, list[Row]] = collections.defaultdict(list)
    length: dict[tuple, int] = collections.defaultdict(int)
    for row in rows:
        rollouts[(*_group(row), row["sibling"])].append(row)
        length[_group(row)] = max(length[_group(row)], row["position"])
    per_group: dict[tuple, list[float]] = collections.defaultdict(list)
    for key, own in rollouts.items():
        half = length[key[:-1]] // 2
        early = [number(r, "performance") for r in own if r["position"] <= half]
        late = [number(r, "performance") for r in own if r["position"] > half]
        per_group[key[:-1]].append(mean(late).mean - mean(early).mean)
    return mean(mean(values).mean for values in per_group.values())


def over_groups(rows: Iterable[Row], value: Any) -> Mean:
    """Mean of `value(row)` over groups: first within each, then over them."""
    groups: dict[tuple, list[float]] = collections.defaultdict(list)
    for row in rows:
        groups[_group(row)].append(value(row))
    return mean(mean(values).mean for values in groups.values())


def moving_mean(values: Sequence[float], width: int) -> list[float]:
    """Centred mean over `width` (odd) points, over fewer at the ends."""
    half = width // 2
    return [float(np.mean(values[max(0, i - half):i + half + 1])) for i in range(len(values))]


def number(row: Mapping[str, Any], name: str) -> float:
    """A field as a number; nan where it is missing or none."""
    return float(row[name]) if is_number(row.get(name)) else math.nan


def _position(place: int, groups: Sequence[Sequence[Row]], std_floor: float) -> Position:
    def of(value: Any) -> Mean:
        return mean(mean(map(value, own)).mean for own in groups)

    compared = [own for own in groups if len(own) > 1]
    spread = [np.std([row["reward"] for row in own]) for own in compared]
    solved = [mean(map(_passed, own)).mean for own in compared]

    def share(flags: Iterable[bool]) -> float:
        return sum(flags) / len(compared) if compared else math.nan

    return Position(
        place, of(_passed), of(lambda r: number(r, "reward")),
        of(lambda r: number(r, "performance")), len(compared),
        with_gradient=share(s >= std_floor and s > 0 for s in spread),
        all_passed=share(s == 1 for s in solved), mixed=share(0 < s < 1 for s in solved),
        none_passed=share(s == 0 for s in solved))


def _passed(row: Row) -> float:
    return float(row.get("status") == "solved")


def _group(row: Row) -> tuple:
    return row.get("step"), row["group"]


def _segment(row: Row) -> tuple:
    """Rows from before segments were recorded all lie in one."""
    return (*_group(row), row.get("segment", 0))


def _segment_starts(rows: Iterable[Row]) -> dict[tuple, int]:
    starts: dict[tuple, int] = {}
    for row in rows:
        key = _segment(row)
        starts[key] = min(row["position"], starts.get(key, row["position"]))
    return starts
