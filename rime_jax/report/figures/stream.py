"""Figures along the stream: by position in a segment, and what adds up to its end."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from rime_jax.report import evaluations, statistics
from rime_jax.report.figures.traces import (
    NAMES_AXIS,
    POSITION_AXIS,
    Drawn,
    Figure,
    band,
    line,
    panel,
)
from rime_jax.report.statistics import Mean, Position

_FRACTION = {"range": [-0.04, 1.04]}
_CHARTS: dict[str, tuple[dict[str, Any], Callable[[Position], Mean]]] = {
    "pass fraction": (_FRACTION, lambda p: p.passed),
    "groups with a gradient": (_FRACTION, lambda p: Mean(p.with_gradient, math.nan, p.groups)),
    "performance": ({}, lambda p: p.performance),
}
_SHARES: dict[str, tuple[str, Callable[[Position], float]]] = {
    "none passed": ("var(--fail)", lambda p: p.none_passed),
    "some passed": ("var(--accent)", lambda p: p.mixed),
    "all passed": ("var(--good)", lambda p: p.all_passed),
}


def positions(drawn: Sequence[Drawn]) -> Figure | None:
    """Pass fraction, groups with a gradient and performance by position in the segment."""
    panels = []
    for title, (axis, value) in _CHARTS.items():
        traces = []
        for d in drawn:
            found = [(p.position, value(p)) for p in d.positions
                     if not math.isnan(value(p).mean)]
            if found:
                trace = line(d.run.name, [(x, m.mean) for x, m in found], d.style, markers=True)
                errors = [0 if math.isnan(m.se) else m.se for _, m in found]
                trace["error_y"] = {"type": "data", "array": errors, "thickness": 1, "width": 0}
                traces.append(trace)
        if traces:
            panels.append(panel(title, traces, legend=not panels, xaxis=POSITION_AXIS, yaxis=axis))
    return Figure(
        "positions", "Along the segment",
        "Of the later half of the dumped iterations, by position in the segment; bars are one "
        "standard error over groups. A group has a gradient where its rewards differ; a run of "
        "single tasks has one position.", panels) if panels else None


def outcomes(drawn: Sequence[Drawn]) -> Figure | None:
    """Groups at the two hardest positions: none, some or all siblings pass."""
    found = [(f"{d.run.name} · position {p.position}", p) for d in drawn
             for p in statistics.hardest([p for p in d.positions if p.groups])]
    if not found:
        return None
    labels = [label for label, _ in found]
    traces = [
        {"type": "bar", "orientation": "h", "name": name, "x": [share(p) for _, p in found],
         "y": labels, "marker": {"color": colour},
         "hovertemplate": "%{x:.0%}<extra>" + name + "</extra>"}
        for name, (colour, share) in _SHARES.items()
    ]
    chart = panel("share of groups", traces, legend=True, height=110 + 26 * len(labels),
                  xaxis={"tickformat": ".0%", "range": [0, 1], "dtick": 0.25},
                  yaxis={**NAMES_AXIS, "autorange": "reversed"})
    chart["layout"] |= {"barmode": "stack", "hovermode": "closest"}
    return Figure(
        "outcomes", "Outcomes of the groups at the two hardest positions",
        "Only groups of which some siblings pass and some fail tell the actor anything through "
        "the task's reward.", [chart])


def gain(drawn: Sequence[Drawn]) -> Figure | None:
    """Cumulative gain by position, with one standard error where it is known."""
    curves = [(d, policy, key) for d in drawn for policy in evaluations.policies(d.run)
              if policy.kind in ("trained", "other") for key in policy.curves]
    panels = []
    for key in sorted({key for _, _, key in curves}, key=_order):
        traces = []
        for d, policy, own in curves:
            if own == key:
                scaffold = "" if policy.scaffold == "act_write" else (
                    f", {policy.scaffold.replace('_', '-')}")
                traces += band(d.run.name + scaffold, policy.curves[key], d.style)
        panels.append(panel(_title(key), traces, legend=not panels, xaxis=POSITION_AXIS))
    return Figure(
        "gain", "Gain along the stream",
        "Evaluations of the trained policies, by position in the stream. Bands are one standard "
        "error: over the runs where one stream is played in several orders, over the held-out "
        "streams elsewhere.", panels) if panels else None


def _order(key: str) -> tuple[int, str]:
    return ("cumulative_gain", "cumulative_reward", "performance").index(key.partition("@")[0]), key


def _title(key: str) -> str:
    quantity, _, tasks = key.partition("@")
    title = {"performance": "held-out performance"}.get(quantity, quantity.replace("_", " "))
    return f"{title}, {tasks} tasks" if tasks else title
