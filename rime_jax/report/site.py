"""Writes the site: pages from templates, the figures, and the rollouts as script files."""

import contextlib
import fcntl
import importlib.resources
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jinja2
import markupsafe

from rime_jax.report import (
    cells,
    evaluations,
    facts,
    figures,
    rollouts,
    shards,
    statistics,
    tables,
)
from rime_jax.report.runs import ReportError, Run
from rime_jax.tracking import metrics
from rime_jax.tracking.values import is_number

# Of the rollouts; with plotly.js and the pages a report stays below 30 MB.
_ROLLOUT_BYTES = 23_000_000
_MARK = '<meta name="generator" content="rime_jax.report">'
_ASSETS = ("style.css", "theme.js", "plots.js", "dom.js", "diff.js", "store.js", "task.js",
           "filter.js", "map.js", "browser.js")


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
      ReportError: `out` holds something that is no report, or another one is being written there.
    """
    if out.exists() and not out.is_dir():
        raise ReportError(f"{out} is a file; name a directory with --out")
    out.mkdir(parents=True, exist_ok=True)
    with _alone(out):
        _make_room(out)
        return _write(runs, out, plotly_js, say)


def _write(
    runs: Sequence[Run], out: pathlib.Path, plotly_js: str, say: Callable[[str], None]
) -> pathlib.Path:
    budget = shards.Budget(_ROLLOUT_BYTES, sum(len(run.dumps) for run in runs))
    written = [rollouts.write(i, run, out, budget, say) for i, run in enumerate(runs)]
    drawn = [
        figures.draw(i, run, statistics.by_position(own.late, _std_floor(run)), own.scores)
        for i, (run, own) in enumerate(zip(runs, written, strict=True))
    ]
    sheets = tables.tables(runs)
    index = {"runs": [{"name": run.name, "domain": facts.domain(run), "dumps": own.index}
                      for run, own in zip(runs, written, strict=True)]}
    _save(out / "data" / "index.js", f"rimeIndex({json.dumps(index, separators=(',', ':'))});\n")
    _save(out / "assets" / "plotly.js", plotly_js)
    here = importlib.resources.files("rime_jax.report")
    for name in _ASSETS:
        _save(out / "assets" / name, here.joinpath("assets", name).read_text())
    environment = _environment()
    lines = [_run_line(i, run, own) for i, (run, own) in enumerate(
        zip(runs, written, strict=True))]
    context = {
        "runs": lines, "alike": len({(own["setting"], own["model"]) for own in lines}) == 1,
        "tables": sheets, "figures": figures.figures(drawn, sheets), "mark": _MARK,
        "whole": shards.LIMITS[0], "source": facts.published()["source"],
        "run_index": {run.name: i for i, run in enumerate(runs)},
    }
    for page in ("browse.html", "index.html"):
        _save(out / page, environment.get_template(f"{page}.j2").render(context))
    return out / "index.html"


@contextlib.contextmanager
def _alone(out: pathlib.Path) -> Iterator[None]:
    """Keeps a second report out of the directory; the lock falls with its process."""
    place = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ReportError(f"another report is being written into {out}; wait for it, or name "
                              "another directory with --out") from None
        yield
    finally:
        os.close(place)


def _make_room(out: pathlib.Path) -> None:
    if any(out.iterdir()):
        page = out / "index.html"
        if not page.is_file() or _MARK not in page.read_text(errors="replace"):
            raise ReportError(f"{out} holds something that is no report, which would be mixed with "
                              "one; name another directory with --out")
    # What a kill leaves is known as a report, and says that it is none yet.
    _save(out / "index.html", f"<!doctype html>{_MARK}<p>This report was not finished. Make it "
                              "again: the same command writes over it.")
    # Dumps of an earlier report that this one lacks must not stay.
    shutil.rmtree(out / "data", ignore_errors=True)


def _std_floor(run: Run) -> float:
    floor = run.config.get("reward.std_floor")
    return float(floor) if is_number(floor) else 0.0


def _run_line(i: int, run: Run, written: rollouts.Written) -> dict[str, Any]:
    """A run as the list of runs shows it."""
    config = run.config
    settings = [e["setting"] for e in run.evaluations.values() if isinstance(e.get("setting"), str)]
    return {
        "index": i, "name": run.name, "experiment": config.get("name", ""),
        "model": config.get("model.path") or "shipped small policy",
        "setting": settings[-1] if settings else facts.domain(run), "steps": run.steps,
        "of": config.get("steps", "?"), "dumps": len(run.dumps), "problems": run.problems,
        "cut": written.cut, **_headline(run),
    }


def _headline(run: Run) -> dict[str, Any]:
    """Performance and gain of the policy that a run began with, then of the trained one.

    Of held-out streams; sums over `tasks` tasks where it was evaluated on one stream in several
    orders and in no other way.
    """
    pair = sorted((p for p in evaluations.policies(run) if p.scaffold == "act_write"),
                  key=lambda policy: policy.kind == "trained")
    sums = sorted(key for policy in pair for key in policy.values if key.startswith("reward@"))
    tasks = "" if not sums or any("performance" in p.values for p in pair) else (
        sums[0].partition("@")[2])
    names = (f"reward@{tasks}", f"gain@{tasks}") if tasks else ("performance", "gain")
    performance, gain = ([p.values[q].mean for p in pair if q in p.values] for q in names)
    return {"performance": performance, "gain": gain, "tasks": tasks}


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rime_jax.report"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"cell": cells.cell, "spread": cells.spread, "signed": cells.is_signed,
                            "spec": _spec}
    return environment


def _spec(figure: figures.Figure) -> markupsafe.Markup:
    """The figure as JSON that cannot end the script element around it."""
    text = json.dumps(figure.panels, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return markupsafe.Markup(text)


def _save(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lone surrogate or NUL of a run's own names cannot stand in a page.
    metrics.write_atomically(path, text.replace("\0", "\ufffd").encode("utf-8", "replace"))
