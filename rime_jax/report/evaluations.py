"""What evaluations found of each policy of a run, in one form for all files of eval/."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rime_jax.report.runs import Run
from rime_jax.tracking.values import is_number

# Quantities of metrics.jsonl, for policies that no file of eval/ knows.
_QUICK = ("performance", "stateless", "gain", "improvement", "true_memory", "correct_facts")
# The evaluation's name of a curve → ours.
_CURVES = {
    "by_position": "performance",
    "cumulative_reward_by_position": "cumulative_reward",
    "cumulative_gain_by_position": "cumulative_gain",
}


@dataclasses.dataclass(frozen=True)
class Value:
    """A number with what is known of its uncertainty.

    Attributes:
      low, high: 95 % interval, or None; se: standard error, or None.
      n: runs it is the mean of.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    se: float | None = None
    n: int = 1


@dataclasses.dataclass(frozen=True)
class Curve:
    """A quantity along a stream, from its first position on; `se` may be empty."""

    mean: Sequence[float]
    se: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class Policy:
    """One policy in one scaffold.

    Attributes:
      name: as the evaluation has it: initial, branch point, step 100.
      kind: untrained, branch point, trained or other.
      scaffold: how it was played: act_write, in_context or stateless.
      source: the file that says most of it.
      values: quantity → value. Sums over the n tasks of one stream, the protocol of several runs,
        are `reward@n`, `gain@n` and `stateless@n`.
      curves: quantity → curve by position: `performance`, `cumulative_reward@n`,
        `cumulative_gain@n`.
    """

    name: str
    kind: str
    scaffold: str
    source: str
    values: Mapping[str, Value]
    curves: Mapping[str, Curve]


def policies(run: Run) -> list[Policy]:
    """The policies of a run; of each what the evaluations say, the most telling one first.

    An evaluation of more steps counts before one of fewer, `final` before all; what was measured
    during training is taken where nothing else is there. Steps with a learning rate of 0 train
    nothing.
    """
    learns = run.config.get("learner.lr") != 0
    found: dict[tuple[str, str], Policy] = {}
    for stem in sorted(run.evaluations, key=_rank):
        for policy in _of_file(stem, run.evaluations[stem], learns):
            key = (policy.kind if policy.kind != "other" else policy.name, policy.scaffold)
            before = found.get(key)
            if before is not None:  # what only the earlier file knows is kept
                policy = dataclasses.replace(
                    policy, values={**before.values, **policy.values},
                    curves={**before.curves, **policy.curves})
            found[key] = policy
    for policy in _of_lines(run, learns):
        found.setdefault((policy.kind, policy.scaffold), policy)
    return list(found.values())


def _rank(stem: str) -> tuple[int, int, str]:
    """Sorts the files of eval/ from the least telling to the most."""
    step = re.search(r"(\d+)$", stem)
    return (1 if stem == "final" else 0, int(step[1]) if step else 0, stem)


def _of_file(stem: str, found: Mapping[str, Any], learns: bool) -> list[Policy]:
    rows = found.get("policies")
    if not isinstance(rows, dict):
        return []
    read = _of_runs if found.get("protocol") == "runs" else _of_streams
    policies = []
    for name, row in rows.items():
        if isinstance(row, dict):
            scaffold = str(row.get("scaffold", found.get("scaffold", "act_write")))
            values, curves = read(row)
            policies.append(
                Policy(name, _kind(name, learns), scaffold, f"eval/{stem}.json", values, curves))
    return policies


def _of_streams(row: Mapping[str, Any]) -> tuple[dict[str, Value], dict[str, Curve]]:
    values = {name: value for name, cell in row.items()
              if name not in _CURVES and (value := _value(cell)) is not None}
    return values, _curves(row)


def _of_runs(row: Mapping[str, Any]) -> tuple[dict[str, Value], dict[str, Curve]]:
    curves = _curves(row)
    n = max((len(curve.mean) for curve in curves.values()), default=0)
    values = {f"{name}@{n}": value for name in ("reward", "gain", "stateless")
              if (value := _value(row.get(name))) is not None}
    return values, {f"{name}@{n}": curve for name, curve in curves.items()}


def _of_lines(run: Run, learns: bool) -> list[Policy]:
    lines = [line for line in run.lines if is_number(line.get("eval/performance"))]
    first = "branch point" if run.config.get("model.branch_from") else "initial"
    names = {f"step {line['step']}" if line["step"] else first: line for line in lines}
    newest = {_kind(name, learns): name for name in names}
    return [
        Policy(name, kind, "act_write", "metrics.jsonl",
               {q: Value(float(names[name][f"eval/{q}"])) for q in _QUICK
                if is_number(names[name].get(f"eval/{q}"))}, {})
        for kind, name in newest.items()
    ]


def _kind(name: str, learns: bool) -> str:
    if name.startswith("branch point"):
        return "branch point"
    step = re.match(r"step (\d+)\b", name)
    if name.startswith("initial") or (step and (int(step[1]) == 0 or not learns)):
        return "untrained"
    return "trained" if step else "other"


def _value(cell: Any) -> Value | None:
    """[mean, low, high], {mean, se} or a bare number; None for anything else."""
    if is_number(cell):
        return Value(float(cell))
    if isinstance(cell, list) and len(cell) == 3 and is_number(cell[0]):
        low, high = (float(x) if is_number(x) else None for x in cell[1:])
        return Value(float(cell[0]), low, high)
    if isinstance(cell, dict) and is_number(cell.get("mean")):
        se = cell.get("se")
        return Value(float(cell["mean"]), se=float(se) if is_number(se) else None)
    return None


def _curves(row: Mapping[str, Any]) -> dict[str, Curve]:
    return {ours: curve for name, ours in _CURVES.items()
            if (curve := _curve(row.get(name))) is not None}


def _curve(cell: Any) -> Curve | None:
    """A list, or {mean, se} of lists; None for anything else."""
    means, errors = (cell.get("mean"), cell.get("se")) if isinstance(cell, dict) else (cell, None)
    if not isinstance(means, list) or not means or not all(map(is_number, means)):
        return None
    if not isinstance(errors, list) or len(errors) != len(means) or not all(
            map(is_number, errors)):
        errors = []
    return Curve([float(x) for x in means], [float(x) for x in errors])
