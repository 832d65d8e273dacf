"""The lines, bands and panels that figures are made of, in the words of plotly.js."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rime_jax.report import statistics
from rime_jax.report.evaluations import Curve
from rime_jax.report.runs import Run
from rime_jax.report.statistics import Position

Trace = dict[str, Any]
Points = Sequence[tuple[float, float]]

# An axis of names takes the room they need. One of numbers has a fixed room: plotly's search for it
# need not end.
NAMES_AXIS = {"automargin": True}
POSITION_AXIS = {"title": {"text": "position"}, "dtick": 1}
STEP_AXIS = {"title": {"text": "iteration"}}


@dataclasses.dataclass(frozen=True)
class Style:
    """How a run is drawn in every figure."""

    color: str
    dash: str


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A run with what the report has computed from its rollouts.

    Attributes:
      positions: of its later dumps, one for each position of a segment.
      scores: step → exploration score of that dump, nan where the judge gave none.
    """

    run: Run
    style: Style
    positions: Sequence[Position]
    scores: Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure; `panels` are charts that share its legend.

    Attributes:
      caption: what is drawn and from what; plain text.
    """

    id: str
    title: str
    caption: str
    panels: Sequence[dict[str, Any]]


def line(name: str, points: Points, style: Style, markers: bool = False) -> Trace:
    return {"type": "scatter", "mode": "lines+markers" if markers else "lines", "name": name,
            "legendgroup": name, "x": [x for x, _ in points], "y": [y for _, y in points],
            "line": {**dataclasses.asdict(style), "width": 2},
            "marker": {"size": 6, "color": style.color}}


def smoothed(name: str, points: Points, style: Style) -> list[Trace]:
    """The curve, thin, and its moving mean over a tenth of it."""
    raw = line(name, points, Style(style.color, "solid"))
    raw |= {"opacity": 0.35, "showlegend": False, "hoverinfo": "skip"}
    raw["line"] = {**raw["line"], "width": 1}
    return [raw, line(name, moving_mean(points), style)]


def moving_mean(points: Points) -> Points:
    """Centred, over a tenth of the curve."""
    width = len(points) // 10 // 2 * 2 + 1
    means = statistics.moving_mean([y for _, y in points], width)
    return [(x, y) for (x, _), y in zip(points, means, strict=True)]


def band(name: str, curve: Curve, style: Style) -> list[Trace]:
    """A curve along a stream with one standard error on both sides, where that is known."""
    middle = line(name, list(enumerate(curve.mean, start=1)), style, markers=True)
    if not curve.se:
        return [middle]
    x = middle["x"]
    upper = [m + s for m, s in zip(curve.mean, curve.se, strict=True)]
    lower = [m - s for m, s in zip(curve.mean, curve.se, strict=True)]
    area = {"type": "scatter", "mode": "lines", "name": name, "legendgroup": name,
            "x": x + x[::-1], "y": upper + lower[::-1], "fill": "toself",
            "fillcolor": style.color, "opacity": 0.16, "line": {"width": 0},
            "showlegend": False, "hoverinfo": "skip"}
    return [area, middle]


def panel(
    title: str, traces: Sequence[Trace], *, legend: bool, xaxis: Mapping[str, Any] | None = None,
    yaxis: Mapping[str, Any] | None = None, height: int = 260,
) -> dict[str, Any]:
    """One chart: plotly's data and layout. `legend`: whether its traces enter the figure's."""
    data = [{**trace, "showlegend": legend and trace.get("showlegend", True)} for trace in traces]
    return {"title": title, "data": data,
            "layout": {"height": height, "xaxis": dict(xaxis or {}), "yaxis": dict(yaxis or {})}}
