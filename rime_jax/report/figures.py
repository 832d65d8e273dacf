"""The figures of the first page as data for plotly.js.

Colours are names of the style sheet (`var(--series-1)`), so that a figure follows the page from
light to dark. A figure for which no run has data is left out.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rime_jax.report import evaluations, statistics
from rime_jax.report.runs import Run
from rime_jax.report.statistics import Position
from rime_jax.report.tables import Table, TableRow, facts

Trace = dict[str, Any]

_SERIES = 8
_DASHES = ("solid", "dash", "dot", "dashdot")
# What the 2 x 2 varies: (exploration rewarded, writer trained).
_ARMS = {
    (True, True): "exploration on, writer trained (RIME)",
    (True, False): "exploration on, writer untrained",
    (False, True): "exploration off, writer trained",
    (False, False): "exploration off, writer untrained",
}
# Charts of one metric each: a title, and the tags that are tried in order.
_HEALTH = {
    "memory blanked: held-out performance": ("eval/stateless",),
    "well-formed memories": ("memory/well_formed",),
    "retention of items, fuzzy": ("memory/retention_fuzzy",),
    "tokens of a memory": ("memory/tokens",),
    "groups without a gradient, reward": ("credit/zero_variance_reward",),
    "w against the length of the memory": ("credit/corr_improvement_memory_tokens",),
    "w against the reward before": ("credit/corr_improvement_last_performance",),
    "malformed after a high reward": ("memory/malformed_after_high_reward",),
    "KL to the initial policy": ("learner/policy/kl_to_initial",),
    "tested before submitting": ("env/tested_before_submit",),
    "submitted blindly": ("env/blind_submit",),
    "conversations over the limit": ("status/context_limit",),
}


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


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A run with what the report has computed from its rollouts.

    Attributes:
      positions: of the last dumps (see `site`), one for each position of a segment.
      dumps: step → exploration score of that dump.
    """

    run: Run
    positions: Sequence[Position]
    dumps: Mapping[int, float]


def figures(drawn: Sequence[Drawn], sheets: Sequence[Table]) -> list[Figure]:
    """The figures of the study that these runs can draw, in its order."""
    runs = [d.run for d in drawn]
    styles = {run.name: _style(i) for i, run in enumerate(runs)}
    found = [_systems(sheet) for sheet in sheets if sheet.id != "data" and sheet.has_ours]
    found += [_exploration(drawn, styles), _learning(runs, styles), _positions(drawn, styles),
              _outcomes(drawn), _gain(runs, styles), _health(runs, styles)]
    return [figure for figure in found if figure is not None]


def _style(index: int) -> dict[str, Any]:
    return {"color": f"var(--series-{index % _SERIES + 1})",
            "dash": _DASHES[index // _SERIES % len(_DASHES)]}


# ------------------------------------------------------------------------------ systems of a table
def _systems(sheet: Table) -> Figure:
    """Published numbers and ours: a line a system, a column of dots for each quantity."""
    labels = [row.system + (f" · {row.who}" if row.who else "") for row in sheet.rows]
    traces, count, gap = [], len(sheet.columns), 0.06
    layout: dict[str, Any] = {
        "height": 100 + 24 * len(labels), "hovermode": "closest",
        "yaxis": {"tickvals": list(range(len(labels))), "ticktext": labels, "automargin": True,
                  "range": [len(labels) - 0.4, -0.6], "zeroline": False},
    }
    for i, (column, title) in enumerate(sheet.columns.items()):
        number = "" if i == 0 else str(i + 1)
        width = (1 - gap * (count - 1)) / count
        start = i * (width + gap)
        layout["xaxis" + number] = {"domain": [start, start + width], "side": "top",
                                    "title": {"text": title}, "nticks": 5}
        pair = _columns(sheet.rows, column)
        for trace in pair:
            trace |= {"xaxis": "x" + number, "yaxis": "y", "showlegend": i == 0}
        traces += pair
    return Figure(f"systems-{sheet.id}", sheet.title, "Hollow: published. Filled: ours, with the 95 % "
                  "interval of the evaluation, or one standard error over seeds. The table says where "
                  "ours are of another model or setting.",
                  [{"title": "", "data": traces, "layout": layout}])


def _columns(rows: Sequence[TableRow], column: str) -> list[Trace]:
    theirs, ours = _dots("published", "circle-open"), _dots("ours", "circle")
    bars = {"type": "data", "symmetric": False, "array": [], "arrayminus": [],
            "color": "var(--accent)", "thickness": 1.5, "width": 0}
    for j, row in enumerate(rows):
        if column in row.published:
            theirs["x"].append(row.published[column])
            theirs["y"].append(j)
        for own in row.ours:
            if column in own.values:
                value = own.values[column]
                low, high = _bounds(value)
                ours["x"].append(value.mean)
                ours["y"].append(j)
                ours["text"].append(", ".join(own.runs))
                bars["arrayminus"].append(value.mean - low)
                bars["array"].append(high - value.mean)
    return [theirs, ours | {"error_x": bars}]


def _dots(name: str, symbol: str) -> Trace:
    colour = "var(--muted)" if name == "published" else "var(--accent)"
    hover = "%{x:.3f}<extra>published</extra>" if name == "published" else (
        "%{x:.3f}<extra>%{text}</extra>")
    return {"type": "scatter", "mode": "markers", "name": name, "x": [], "y": [], "text": [],
            "marker": {"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1.6}},
            "hovertemplate": hover}


def _bounds(value: evaluations.Value) -> tuple[float, float]:
    if value.low is not None and value.high is not None:
        return value.low, value.high
    spread = value.se or 0.0
    return value.mean - spread, value.mean + spread


# ------------------------------------------------------------------------------ over training
def _exploration(drawn: Sequence[Drawn], styles: Mapping[str, Any]) -> Figure | None:
    """The exploration score over training, for the 2 x 2 where it was run."""
    panels = []
    arms = {d.run.name: arm for d in drawn if (arm := _arm(d.run)) is not None}
    shown = [d for d in drawn if d.run.name in arms] if len(set(arms.values())) > 1 else drawn
    scores, traces = {d.run.name: exploration_curve(d) for d in shown}, []
    for d in shown:
        name = arms.get(d.run.name, d.run.name) if shown is not drawn else d.run.name
        if scores[d.run.name]:
            label = name if shown is drawn else f"{name} · {d.run.name}"
            traces += _smoothed(label, scores[d.run.name], styles[d.run.name])
    if not traces:
        return None
    panels.append(_panel("exploration score", traces, xaxis={"title": {"text": "iteration"}}, legend=True))
    return Figure("exploration", "Exploration over training",
                  "The judge's score of what a task added to memory, mean over all tasks of an "
                  "iteration; thin: as measured, thick: moving mean over a tenth of the run. Rewarded "
                  "exploration with an untrained writer can raise the score without any gain.",
                  panels)


def exploration_curve(drawn: Drawn) -> list[tuple[int, float]]:
    """(step, score) as the run logged it; from its dumps where it did not."""
    return drawn.run.curve("exploration/score") or [
        (step, score) for step, score in drawn.dumps.items() if score == score]


def _arm(run: Run) -> str | None:
    """The run's place in the 2 x 2; None where it varies something else."""
    known = facts(run)
    if known["credit"] not in ("improvement", "none") or known["parameters"] != "shared":
        return None
    return _ARMS[known["exploration"], known["credit"] == "improvement"]


def _learning(runs: Sequence[Run], styles: Mapping[str, Any]) -> Figure | None:
    """Held-out curves of all runs."""
    charts = {
        "held-out performance": "eval/performance", "gain over the memory-blanked self": "eval/gain",
        "improvement within the stream": "eval/improvement",
    }
    panels = []
    for title, tag in charts.items():
        traces = [_line(run.name, run.curve(tag) + _final(run, tag), styles[run.name], "lines+markers")
                  for run in runs if run.curve(tag)]
        if traces:
            panels.append(_panel(title, traces, xaxis={"title": {"text": "iteration"}},
                                 legend=not panels))
    return Figure("learning", "What is learnt through memory",
                  "Held-out streams during training; the last point is the final evaluation. The "
                  "memory-blanked self is the same checkpoint with its memory emptied before each "
                  "task.", panels) if panels else None


def _final(run: Run, tag: str) -> list[tuple[int, float]]:
    for policy in evaluations.policies(run):
        value = policy.values.get(tag.removeprefix("eval/"))
        if policy.kind == "trained" and policy.source != "metrics.jsonl" and value is not None:
            return [(run.steps, value.mean)]
    return []


def _health(runs: Sequence[Run], styles: Mapping[str, Any]) -> Figure | None:
    panels = []
    for title, tags in _HEALTH.items():
        traces = []
        for run in runs:
            curve = next((c for tag in tags if (c := run.curve(tag))), None)
            if curve:
                width = _width(curve)
                smooth = statistics.moving_mean([y for _, y in curve], width)
                points = [(x, y) for (x, _), y in zip(curve, smooth, strict=True)]
                traces.append(_line(run.name, points, styles[run.name]))
        if traces:
            panels.append(_panel(title, traces, legend=not panels, height=210))
    return Figure("health", "What can go wrong",
                  "Moving means over a tenth of the run. Correlations of the improvement w are within "
                  "groups: near 0, the writer is paid for the actor's luck; a strongly negative one "
                  "with the reward before is regression to the mean.", panels) if panels else None


# ------------------------------------------------------------------------------ along the stream
def _positions(drawn: Sequence[Drawn], styles: Mapping[str, Any]) -> Figure | None:
    charts: dict[str, Callable[[Position], float]] = {
        "pass fraction": lambda p: p.passed.mean,
        "groups with a gradient": lambda p: p.with_gradient,
        "performance": lambda p: p.performance.mean,
    }
    panels = []
    for title, value in charts.items():
        traces = []
        for d in drawn:
            points = [(p.position, y) for p in d.positions if (y := value(p)) == y]
            if points:
                trace = _line(d.run.name, points, styles[d.run.name], "lines+markers")
                if title == "pass fraction":
                    trace["error_y"] = _bars([p.passed.se for p in d.positions])
                traces.append(trace)
        if traces:
            panels.append(_panel(title, traces, xaxis=_POSITION, legend=not panels))
    return Figure("positions", "Along the segment",
                  "Of the later half of the dumped iterations, by position in the segment; bars are one "
                  "standard error over groups. A group has a gradient where its rewards differ; a run "
                  "of single tasks has one position.", panels) if panels else None


def _outcomes(drawn: Sequence[Drawn]) -> Figure | None:
    """Groups at the two hardest positions: none, some or all siblings pass."""
    labels, shares = [], {"none passed": [], "some passed": [], "all passed": []}
    for d in drawn:
        for p in statistics.hardest([p for p in d.positions if p.groups]):
            labels.append(f"{d.run.name} · position {p.position}")
            for name, share in zip(shares, (p.none_passed, p.mixed, p.all_passed), strict=True):
                shares[name].append(share)
    if not labels:
        return None
    colours = ("var(--fail)", "var(--accent)", "var(--good)")
    traces = [
        {"type": "bar", "orientation": "h", "name": name, "x": values, "y": labels,
         "marker": {"color": colour}, "hovertemplate": "%{x:.0%}<extra>" + name + "</extra>"}
        for (name, values), colour in zip(shares.items(), colours, strict=True)
    ]
    panel = _panel("share of groups", traces, legend=True, height=110 + 26 * len(labels),
                   yaxis={"autorange": "reversed"}, xaxis={"tickformat": ".0%", "range": [0, 1]})
    panel["layout"]["barmode"] = "stack"
    return Figure("outcomes", "Outcomes of the groups at the two hardest positions",
                  "Only groups of which some siblings pass and some fail tell the actor anything "
                  "through the task's reward.", [panel])


def _gain(runs: Sequence[Run], styles: Mapping[str, Any]) -> Figure | None:
    """Cumulative gain by position, with one standard error where it is known."""
    panels = []
    charts = {"cumulative gain": "cumulative_gain_by_position",
              "cumulative reward": "cumulative_reward_by_position",
              "held-out performance by position": "by_position"}
    for title, key in charts.items():
        traces = []
        for run in runs:
            for policy in evaluations.policies(run):
                curve = policy.curves.get(key)
                if curve is not None and policy.kind == "trained":
                    traces += _band(run.name, curve, styles[run.name])
        if traces:
            panels.append(_panel(title, traces, xaxis=_POSITION, legend=not panels))
    return Figure("gain", "Gain along the stream",
                  "Held-out streams, the trained policies; bands are one standard error over runs of "
                  "the stream.", panels) if panels else None


# ------------------------------------------------------------------------------ traces and panels
_POSITION = {"title": {"text": "position"}, "dtick": 1}


def _line(
    name: str, points: Sequence[tuple[float, float]], style: Mapping[str, Any], mode: str = "lines"
) -> Trace:
    return {"type": "scatter", "mode": mode, "name": name, "legendgroup": name,
            "x": [x for x, _ in points], "y": [y for _, y in points],
            "line": {**style, "width": 2}, "marker": {"size": 6, "color": style["color"]}}


def _smoothed(name: str, points: Sequence[tuple[int, float]], style: Mapping[str, Any]) -> list[Trace]:
    """The curve, thin, and its moving mean."""
    raw = _line(name, points, {**style, "dash": "solid"})
    raw |= {"opacity": 0.35, "showlegend": False, "hoverinfo": "skip"}
    raw["line"] = {**raw["line"], "width": 1}
    smooth = statistics.moving_mean([y for _, y in points], _width(points))
    mean = [(x, y) for (x, _), y in zip(points, smooth, strict=True)]
    return [raw, _line(name, mean, style)]


def _width(points: Sequence[Any]) -> int:
    """Points of a moving mean: a tenth of the curve, an odd number."""
    return len(points) // 10 // 2 * 2 + 1


def _band(name: str, curve: evaluations.Curve, style: Mapping[str, Any]) -> list[Trace]:
    line = _line(name, list(enumerate(curve.mean, start=1)), style, "lines+markers")
    if not curve.se:
        return [line]
    x = line["x"]
    upper = [m + s for m, s in zip(curve.mean, curve.se, strict=True)]
    lower = [m - s for m, s in zip(curve.mean, curve.se, strict=True)]
    band = {"type": "scatter", "mode": "lines", "name": name, "legendgroup": name, "x": x + x[::-1],
            "y": upper + lower[::-1], "fill": "toself", "fillcolor": style["color"], "opacity": 0.16,
            "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    return [band, line]


def _bars(errors: Sequence[float]) -> dict[str, Any]:
    return {"type": "data", "array": [e if e == e else 0 for e in errors], "thickness": 1, "width": 0}


def _panel(
    title: str, traces: Sequence[Trace], *, xaxis: Mapping[str, Any] | None = None,
    yaxis: Mapping[str, Any] | None = None, legend: bool = False, height: int = 260,
) -> dict[str, Any]:
    """One chart: plotly's data and layout."""
    for trace in traces:
        trace["showlegend"] = legend and trace.get("showlegend", True)
    return {"title": title, "data": list(traces),
            "layout": {"height": height, "xaxis": dict(xaxis or {}), "yaxis": dict(yaxis or {})}}
