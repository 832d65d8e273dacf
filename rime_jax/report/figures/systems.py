"""Reward and gain by system: a table as dots, the published ones beside ours."""

from collections.abc import Sequence
from typing import Any

from rime_jax.report.evaluations import Value
from rime_jax.report.figures.traces import NAMES_AXIS, Figure, Trace, panel
from rime_jax.report.tables import Table, TableRow


def figure(sheet: Table) -> Figure:
    """A panel for each quantity of the table, in it a line a system."""
    labels = [row.system + (f" · {row.who}" if row.who else "") for row in sheet.rows]
    yaxis: dict[str, Any] = {
        **NAMES_AXIS, "tickvals": list(range(len(labels))), "ticktext": labels, "zeroline": False,
        "range": [len(labels) - 0.4, -0.6]}
    panels = [
        panel(title, _dots(sheet.rows, column), legend=i == 0, height=70 + 24 * len(labels),
              xaxis={"nticks": 6}, yaxis=yaxis)
        for i, (column, title) in enumerate(sheet.columns.items())
    ]
    for chart in panels:
        chart["layout"]["hovermode"] = "closest"
    return Figure(f"systems-{sheet.id}", sheet.title, "Hollow: published. Filled: ours, with the "
                  "95 % interval of the evaluation, or one standard error over runs. The list of "
                  "runs says of which model and setting ours are.", panels)


def _dots(rows: Sequence[TableRow], column: str) -> list[Trace]:
    published = [(row.published[column], j) for j, row in enumerate(rows)
                 if column in row.published]
    measured = [(own.values[column], j, own) for j, row in enumerate(rows) for own in row.ours
                if column in own.values]
    theirs = _markers("published", "circle-open", "var(--muted)") | {
        "x": [x for x, _ in published], "y": [j for _, j in published],
        "hovertemplate": "%{x:.3f}<extra>published</extra>"}
    bounds = [_bounds(value) for value, _, _ in measured]
    ours = _markers("ours", "circle", "var(--accent)") | {
        "x": [value.mean for value, _, _ in measured], "y": [j for _, j, _ in measured],
        "text": [", ".join(own.runs) for _, _, own in measured],
        "hovertemplate": "%{x:.3f}<extra>%{text}</extra>",
        "error_x": {
            "type": "data", "symmetric": False, "color": "var(--accent)", "thickness": 1.5,
            "width": 0,
            "array": [high - v.mean for (v, _, _), (_, high) in zip(measured, bounds, strict=True)],
            "arrayminus": [v.mean - low
                           for (v, _, _), (low, _) in zip(measured, bounds, strict=True)]}}
    return [theirs, ours]


def _markers(name: str, symbol: str, colour: str) -> Trace:
    return {"type": "scatter", "mode": "markers", "name": name,
            "marker": {"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1.6}}}


def _bounds(value: Value) -> tuple[float, float]:
    if value.low is not None and value.high is not None:
        return value.low, value.high
    spread = value.se or 0.0
    return value.mean - spread, value.mean + spread
