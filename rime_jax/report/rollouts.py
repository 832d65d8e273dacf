"""Writes the dumps of a run for the browser, and keeps what the first page says about them."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rime_jax.report import shards, statistics
from rime_jax.report.dumps import Row
from rime_jax.report.runs import Run

# Fraction of the dumps, the newest, that the figures along the segment are of.
_LATE = 0.5
# What those figures need of a row.
_KEPT = ("group", "sibling", "position", "segment", "status", "reward", "performance")


@dataclasses.dataclass(frozen=True)
class Written:
    """What is left in memory of a run's dumps.

    Attributes:
      index: of each dump what the browser knows before it loads it.
      scores: step → exploration score, nan where the judge gave none.
      late: rows of the later half of the dumps, with their `step`.
    """

    index: Sequence[Mapping[str, Any]]
    scores: Mapping[int, float]
    late: Sequence[Row]

    @property
    def cut(self) -> int | None:
        """Characters that every dump has of a message; None: there is no dump."""
        return min((dump["kept"] for dump in self.index), default=None)


def write(
    index: int, run: Run, out: pathlib.Path, budget: shards.Budget, say: Callable[[str], None]
) -> Written:
    """Writes data/<index>/ of a report, one dump after another: no more than one is in memory."""
    lines, scores, late = [], {}, []
    for n, step in enumerate(run.dumps):
        say(f"{run.name}: rollouts {n + 1} of {len(run.dumps)}")
        rows = run.rows(step)
        name = f"data/{index}/step_{step:06d}.js"
        kept = shards.write(out / name, index, step, rows, budget)
        scores[step] = statistics.over_groups(rows, statistics.exploration_score).mean
        lines.append({"step": step, "file": name, "kept": kept, **_summary(rows)})
        if n >= int(len(run.dumps) * _LATE):
            late += [{"step": step, **{k: row[k] for k in _KEPT if k in row}} for row in rows]
    return Written(lines, scores, late)


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Streams, means, and how many tasks have which status at which position."""
    streams: dict[int, dict[str, Any]] = {}
    counts: dict[str, dict[int, int]] = {}
    for row in rows:
        streams.setdefault(row["group"], {
            "group": row["group"], "id": row.get("stream") or f"stream {row['group']}",
            "info": row.get("info", {})})
        for label in _labels(row):
            own = counts.setdefault(label, {})
            own[row["position"]] = own.get(row["position"], 0) + 1
    means = {
        "reward": statistics.over_groups(rows, lambda row: statistics.number(row, "reward")),
        "exploration": statistics.over_groups(rows, statistics.exploration_score),
        "improvement": statistics.improvement(rows),
    }
    return {
        "counts": counts, "streams": [streams[group] for group in sorted(streams)],
        **{name: round(mean.mean, 4) if mean.n else None for name, mean in means.items()}}


def _labels(row: Row) -> list[str]:
    """What a task can be filtered by."""
    labels = [row.get("status") or "not recorded"]
    return [*labels, "malformed memory"] if row.get("malformed") else labels
