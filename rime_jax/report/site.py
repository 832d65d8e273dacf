"""Writes the site: pages from templates, figures, and the dumps of rollouts as script files."""

import dataclasses
import importlib.resources
import json
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from rime_jax.report import evaluations, figures, shards, statistics, tables
from rime_jax.report.runs import ReportError, Row, Run

# Of the rollouts; with plotly.js and the pages a report stays below 30 MB.
_ROLLOUT_BYTES = 23_000_000
# Fraction of the dumps, the newest, that the figures along the segment are of.
_LATE = 0.5
_MARK = '<meta name="generator" content="rime_jax.report">'
_ASSETS = ("style.css", "theme.js", "plots.js", "diff.js", "store.js", "task.js", "browser.js")


@dataclasses.dataclass(frozen=True)
class _Dumps:
    """What is kept of a run's dumps once they are written: {step: …} and the newest rows."""

    index: list[dict[str, Any]]
    scores: Mapping[int, float]
    late: list[Row]


def write(
    runs: Sequence[Run], out: pathlib.Path, plotly_js: str, say: Callable[[str], None]
) -> pathlib.Path:
    """Writes the report of some runs into a directory; returns its first page.

    Args:
      runs: as `runs.read` gives them.
      out: made if missing. An earlier report in it is replaced, anything else refused.
      plotly_js: the library that draws the figures.
      say: is told how far it is.

    Raises:
      ReportError: `out` holds something that is no report.
    """
    _make_room(out)
    budget = shards.Budget(_ROLLOUT_BYTES, sum(len(run.dumps) for run in runs))
    dumps = [_write_dumps(i, run, out, budget, say) for i, run in enumerate(runs)]
    floor = [float(run.config.get("reward.std_floor", 0.0)) for run in runs]
    drawn = [
        figures.Drawn(run, statistics.by_position(own.late, floor[i]), own.scores)
        for i, (run, own) in enumerate(zip(runs, dumps, strict=True))
    ]
    sheets = tables.tables(runs)
    index = {"runs": [
        {"name": run.name, "domain": tables.domain(run), "path": str(run.path), "dumps": own.index}
        for run, own in zip(runs, dumps, strict=True)]}
    _text(out / "data" / "index.js", f"rimeIndex({json.dumps(index, separators=(',', ':'))});\n")
    _text(out / "assets" / "plotly.js", plotly_js)
    here = importlib.resources.files("rime_jax.report")
    for name in _ASSETS:
        _text(out / "assets" / name, here.joinpath("assets", name).read_text())
    environment = _environment()
    context = {
        "runs": [_run_line(i, run, own) for i, (run, own) in enumerate(
            zip(runs, dumps, strict=True))],
        "tables": sheets, "figures": figures.figures(drawn, sheets), "mark": _MARK,
        "source": tables.published()["source"], "many": len(runs) > 1,
        "run_index": {run.name: i for i, run in enumerate(runs)},
    }
    _text(out / "browse.html", environment.get_template("browse.html.j2").render(context))
    _text(out / "index.html", environment.get_template("index.html.j2").render(context))
    return out / "index.html"


def _make_room(out: pathlib.Path) -> None:
    if out.exists() and not out.is_dir():
        raise ReportError(f"{out} is a file; name a directory with --out")
    page = out / "index.html"
    if out.is_dir() and any(out.iterdir()):
        if not page.is_file() or _MARK not in page.read_text(errors="replace"):
            raise ReportError(f"{out} holds something that is no report, which would be mixed with "
                              "one; name another directory with --out")
        # Dumps of an earlier report that this one lacks must not stay.
        shutil.rmtree(out / "data", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)


def _write_dumps(
    i: int, run: Run, out: pathlib.Path, budget: shards.Budget, say: Callable[[str], None]
) -> _Dumps:
    found = _Dumps([], {}, [])
    scores: dict[int, float] = {}
    first_late = int(len(run.dumps) * _LATE)
    for n, step in enumerate(run.dumps):
        say(f"{run.name}: rollouts {n + 1} of {len(run.dumps)}")
        rows = run.rows(step)
        name = f"data/{i}/step_{step:06d}.js"
        kept = shards.write(out / name, i, step, rows, budget)
        for row in rows:
            row["step"] = step
        scores[step] = statistics.over_groups(rows, statistics.exploration_score).mean
        found.index.append(_dump_line(step, name, kept, rows))
        if n >= first_late:
            found.late.extend(_light(row) for row in rows)
    return dataclasses.replace(found, scores=scores)


def _dump_line(step: int, name: str, kept: int, rows: Sequence[Row]) -> dict[str, Any]:
    """What the browser knows of a dump before it is loaded."""
    streams: dict[int, dict[str, Any]] = {}
    counts: dict[str, dict[int, int]] = {}
    for row in rows:
        streams.setdefault(row["group"], {
            "group": row["group"], "id": str(row.get("stream", f"stream {row['group']}")),
            "info": row.get("info") if isinstance(row.get("info"), dict) else {}})
        for label in _labels(row):
            own = counts.setdefault(label, {})
            own[row["position"]] = own.get(row["position"], 0) + 1
    return {
        "step": step, "file": name, "kept": kept, "counts": counts,
        "streams": [streams[group] for group in sorted(streams)],
        "reward": _or_none(statistics.over_groups(rows, lambda r: statistics.number(r, "reward"))),
        "exploration": _or_none(statistics.over_groups(rows, statistics.exploration_score)),
        "improvement": _or_none(statistics.improvement(rows)),
    }


def _labels(row: Row) -> list[str]:
    """What a task can be filtered by."""
    labels = [str(row.get("status", "unknown"))]
    return labels + ["malformed memory"] if row.get("malformed") else labels


def _light(row: Row) -> Row:
    kept = ("step", "group", "sibling", "position", "segment", "status", "reward", "performance")
    return {name: row[name] for name in kept if name in row}


def _run_line(i: int, run: Run, dumps: _Dumps) -> dict[str, Any]:
    config, played = run.config, evaluations.policies(run)
    # The policy that it began with, then the trained one.
    pair = sorted((p for p in played if p.scaffold == "act_write"),
                  key=lambda p: p.kind == "trained")
    settings = [e["setting"] for e in run.evaluations.values() if isinstance(e.get("setting"), str)]
    return {
        "index": i, "name": run.name, "experiment": config.get("name", ""), "path": run.path,
        "domain": tables.domain(run), "model": config.get("model.path") or "shipped small policy",
        "setting": settings[-1] if settings else "", "steps": run.steps,
        "of": config.get("steps", "?"), "dumps": len(run.dumps), "problems": run.problems,
        **{q: [p.values[q].mean for p in pair if q in p.values] for q in ("performance", "gain")},
        "cut": min((d["kept"] for d in dumps.index), default=None),
    }


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rime_jax.report"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["cell"] = _cell
    environment.filters["spread"] = _spread
    environment.filters["spec"] = _spec
    environment.filters["signed"] = lambda column: "gain" in column or "improvement" in column
    return environment


def _cell(value: float | None, decimals: int, signed: bool) -> str:
    """A number of a table; with a true minus sign, so that columns align."""
    if value is None:
        return ""
    return f"{value:{'+' if signed else ''}.{decimals}f}".replace("-", "−")


def _spread(value: evaluations.Value, decimals: int) -> str:
    if value.low is not None and value.high is not None:
        low, high = (f"{x:.{decimals}f}".replace("-", "−") for x in (value.low, value.high))
        return f"[{low}, {high}]"
    return "" if value.se is None else f"± {value.se:.{decimals}f}"


def _spec(figure: figures.Figure) -> markupsafe.Markup:
    """The figure as JSON that cannot end the script element around it."""
    text = json.dumps(figure.panels, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return markupsafe.Markup(text)


def _or_none(found: statistics.Mean) -> float | None:
    return round(found.mean, 4) if found.n else None


def _text(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lone surrogate or NUL of a run's own names cannot stand in a page.
    path.write_bytes(text.replace("\0", "\ufffd").encode("utf-8", "replace"))
