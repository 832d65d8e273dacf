"""What came out of the study: one compact row a run, merged into a file that outlives the runs.

    python -m rime_jax.study.results runs/study                       what is there, and what is not
    python -m rime_jax.study.results runs/study --into docs/study/results.json

The runs of the study are made on several occasions and machines. Rows of runs that are not in the
directory stay as they are; those that are there are read anew.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from rime_jax import config as config_lib
from rime_jax import experiment
from rime_jax.report import dumps
from rime_jax.study import plan, steps
from rime_jax.tracking import metrics
from rime_jax.tracking.values import is_number

# The cell of a warm start's own row.
WARM_START = "warm_start"
# Of each chemistry; the gain is the difference of the first two.
QUANTITIES = ("performance", "stateless", "improvement", "true_memory", "correct_facts")
# Of training, in means over so many iterations.
TRAINING = ("performance/mean", "exploration/score", "memory/correct_facts", "memory/wrong_facts",
            "memory/retention_exact", "memory/well_formed", "memory/tokens")
EVERY = 10
# Of the evaluations during training.
DURING = ("eval/performance", "eval/gain")
# Not options of a cell, but of one run or one machine.
_OF_A_RUN = ("name", "run_dir", "seed", "resume", "model.path", "model.branch_from")
_DIGITS = 4

Key = tuple[str, str, str, str, int]


@dataclasses.dataclass(frozen=True)
class Row:
    """One evaluation on the held-out chemistries: of a run, of a warm start, or of a pair.

    Attributes:
      setting, warm, cell, seed: as in `plan`; a warm start is cell `WARM_START`, seed 0.
      writer: the cell whose writer took the place of the own one, or "".
      options: what differs from the defaults of rime_jax/config.py.
      values: quantity → its value for each chemistry, mean over rollouts; None: there is none.
      by_position: mean performance of each task of a stream.
      training: tag → means over `EVERY` iterations each.
      during: tag → [iteration, value] of the evaluations during training.
      memories: of seed 0, iteration → the memory after each task of the first stream as its first
        sibling wrote them, in the first and in the last iteration that was recorded.
    """

    setting: str
    warm: str
    cell: str
    seed: int
    values: dict[str, list[float | None]]
    by_position: list[float]
    writer: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    training: dict[str, list[float | None]] = dataclasses.field(default_factory=dict)
    during: dict[str, list[list[float]]] = dataclasses.field(default_factory=dict)
    memories: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.setting, self.warm, self.cell, self.writer, self.seed

    def of(self, quantity: str) -> np.ndarray:
        """[chemistries]; nan where there is none."""
        if quantity == "gain":
            return self.of("performance") - self.of("stateless")
        return np.array([np.nan if x is None else x for x in self.values[quantity]], float)


@dataclasses.dataclass(frozen=True)
class Results:
    """Rows by key, and the held-out chemistries of each setting, which all its rows share."""

    rows: dict[Key, Row]
    chemistries: dict[str, list[str]]

    def select(self, setting: str, cell: str, writer: str = "") -> dict[tuple[str, int], Row]:
        """(warm start, seed) → row, in order."""
        return {(row.warm, row.seed): row for key, row in sorted(self.rows.items())
                if (row.setting, row.cell, row.writer) == (setting, cell, writer)}


def load(path: pathlib.Path) -> Results:
    """The file's results; none where there is no file.

    Raises:
      ConfigError: it holds something else.
    """
    if not path.exists():
        return Results({}, {})
    try:
        found = json.loads(path.read_text())
        rows = [Row(**row) for row in found["rows"]]
        return Results({row.key: row for row in rows}, found["chemistries"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise config_lib.ConfigError(
            f"{path} cannot be read as results of the study: {error}; take it from the repository "
            "again, or name another file") from error


def save(results: Results, path: pathlib.Path) -> None:
    """A row a line, in order: a difference of two versions shows runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(
        {k: v for k, v in dataclasses.asdict(row).items() if v or k == "seed"},
        separators=(",", ":")) for _, row in sorted(results.rows.items()))
    chemistries = json.dumps(dict(sorted(results.chemistries.items())), separators=(",", ":"))
    metrics.write_atomically(
        path, f'{{"chemistries":{chemistries},\n"rows":[\n{rows}\n]}}\n'.encode())


def merged(old: Results, new: Results) -> Results:
    """Rows of both; those of `new` where both have one.

    Raises:
      ConfigError: they were evaluated on different chemistries.
    """
    for setting in old.chemistries.keys() & new.chemistries.keys():
        if old.chemistries[setting] != new.chemistries[setting]:
            raise config_lib.ConfigError(
                f"the runs of setting {setting} were evaluated on other chemistries than the "
                "recorded ones, and cannot be compared with them; give them a setting of their own "
                "in rime_jax/study/plan.py")
    return Results(old.rows | new.rows, old.chemistries | new.chemistries)


def read(out: pathlib.Path) -> tuple[Results, list[str]]:
    """The finished runs and evaluations under a directory, and what was left out and why."""
    found, left_out = Results({}, {}), []
    for setting in plan.SETTINGS.values():
        for warm in setting.warm_starts:
            for row, chemistries in _rows(out, setting, warm, left_out):
                found = merged(found, Results({row.key: row}, {setting.name: chemistries}))
    return found, left_out


def _rows(
    out: pathlib.Path, setting: plan.Setting, warm: str, left_out: list[str]
) -> Iterator[tuple[Row, list[str]]]:
    place = steps.directory(out, setting.name, warm)
    initial = False
    for name in setting.cells:
        cell = plan.CELLS[name]
        wanted = options(experiment.read(cell.source(setting.changes)))
        for run in sorted(place.glob(f"{cell.run}_seed*")):
            made = _run(run, setting, warm, cell, wanted)
            if isinstance(made, str):
                left_out.append(f"{run}: {made}")
                continue
            yield made
            own = metrics.read_object(run / "eval" / "final.json")
            if not initial and not cell.on_streams and "initial" in own["policies"]:
                initial = True
                yield _row(own, "initial", setting=setting.name, warm=warm, cell=WARM_START, seed=0)
    for path in sorted(place.glob("swaps/*.json")):
        pair = re.fullmatch(r"(\w+)\+(\w+)_seed(\d+)", path.stem)
        found = metrics.read_object(path)
        if pair and found.get("policies"):
            yield _row(found, list(found["policies"])[-1], setting=setting.name, warm=warm,
                       cell=pair[1], writer=pair[2], seed=int(pair[3]))


def _run(
    run: pathlib.Path, setting: plan.Setting, warm: str, cell: plan.Cell,
    wanted: Mapping[str, Any],
) -> tuple[Row, list[str]] | str:
    """The row of a run, or why it has none."""
    found = metrics.read_object(run / "eval" / "final.json")
    if not found.get("policies"):
        return "not finished"
    config = config_lib.load(str(run / "config.json"))
    own = options(config)
    if wrong := sorted(k for k in own.keys() | wanted.keys() if own.get(k) != wanted.get(k)):
        return f"not as the plan has it: {', '.join(wrong)}"
    if list(found["policies"])[-1] != f"step {config.steps}":
        return "not finished"
    if cell.on_streams:
        found = metrics.read_object(steps.streams_evaluation(run))
        if not found.get("policies"):
            return "not evaluated on streams yet"
    lines = metrics.read(run / "metrics.jsonl")
    seed = int(run.name.rpartition("_seed")[2])
    return _row(
        found, list(found["policies"])[-1], setting=setting.name, warm=warm, cell=cell.name,
        seed=seed, options=own, memories={} if seed else _memories(run / "samples"),
        training={tag: _thinned(lines, tag) for tag in TRAINING},
        during={} if cell.on_streams else {
            tag: [[line["step"], round(line[tag], _DIGITS)] for line in lines
                  if is_number(line.get(tag))] for tag in DURING})


def options(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """What makes a cell: dotted name → value, where it is not the default; JSON values."""
    default = dict(config_lib.flatten(config_lib.default()))
    return json.loads(json.dumps({
        name: value for name, value in sorted(config_lib.flatten(config))
        if name not in _OF_A_RUN and value != default[name]}))


def _row(found: Mapping[str, Any], policy: str, **of: Any) -> tuple[Row, list[str]]:
    values = found["units"]["values"][policy]
    return Row(
        values={quantity: [_round(x) for x in values[quantity]]
                for quantity in QUANTITIES if quantity in values},
        by_position=[round(x, _DIGITS) for x in found["policies"][policy]["by_position"]],
        **of), found["units"]["clusters"]


def _memories(samples: pathlib.Path) -> dict[str, list[str]]:
    files = sorted(samples.glob("step_*.jsonl.gz"))
    found = {}
    for file in files[:1] + files[1:][-1:]:
        rows, _ = dumps.read(file)
        first = min((row["group"], row["sibling"]) for row in rows)
        own = [row for row in rows if (row["group"], row["sibling"]) == first]
        found[str(int(file.name[5:11]))] = [
            row["memory_after"] for row in sorted(own, key=lambda row: row["position"])]
    return found


def _thinned(lines: Iterable[Mapping[str, Any]], tag: str) -> list[float | None]:
    points: dict[int, list[float]] = {}
    for line in lines:
        if is_number(line.get(tag)) and line["step"] > 0:
            points.setdefault((line["step"] - 1) // EVERY, []).append(line[tag])
    return [_round(float(np.mean(points[i]))) if i in points else None
            for i in range(max(points, default=-1) + 1)]


def _round(value: float | None) -> float | None:
    """Rounded, as what follows says nothing and makes the file large."""
    return None if value is None or math.isnan(value) else round(value, _DIGITS)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="rime_jax.study.results", description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", type=pathlib.Path, help="the directory of launch/study.sh --out")
    parser.add_argument("--into", type=pathlib.Path, help="JSON that the rows are merged into")
    arguments = parser.parse_args(argv)
    with experiment.clean_errors():
        found, left_out = read(arguments.runs)
        for reason in left_out:
            print(f"left out: {reason}")
        print(f"{len(found.rows)} rows in {arguments.runs}")
        if arguments.into is not None:
            both = merged(load(arguments.into), found)
            save(both, arguments.into)
            print(f"saved {arguments.into}: {len(both.rows)} rows")


if __name__ == "__main__":
    main()
