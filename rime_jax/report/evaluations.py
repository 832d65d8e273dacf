"""What evaluations found of each policy of a run, in one form for all files of eval/."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rime_jax.report.runs import Run, is_number

# Quantities of the last line of metrics.jsonl that has them, where no evaluation was saved.
_QUICK = ("performance", "stateless", "gain", "improvement", "true_memory", "correct_facts")


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
    """A quantity along a stream; `se` may be empty."""

    mean: Sequence[float]
    se: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Policy:
    """One policy in one evaluation.

    Attributes:
      name: as the evaluation has it: initial, branch point, step 100.
      kind: untrained, branch point or trained.
      scaffold: how it was played: act_write, in_context or stateless.
      source: the file that says most of it.
      values: quantity → value; curves: quantity → curve by position.
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
    during training is taken where nothing else is there.
    """
    found: dict[tuple[str, str], Policy] = {}
    for stem in sorted(run.evaluations, key=_rank):
        for policy in _of_file(stem, run.evaluations[stem]):
            before = found.get((policy.kind, policy.scaffold))
            if before is not None:  # what only the earlier file knows is kept
                policy = dataclasses.replace(
                    policy, values={**before.values, **policy.values},
                    curves={**before.curves, **policy.curves})
            found[policy.kind, policy.scaffold] = policy
    for policy in _of_lines(run):
        found.setdefault((policy.kind, policy.scaffold), policy)
    return list(found.values())


def _rank(stem: str) -> tuple[int, int]:
    """Sorts the files of eval/ from the least telling to the most."""
    step = re.search(r"(\d+)$", stem)
    return (1 if stem == "final" else 0, int(step[1]) if step else 0)


def _of_file(stem: str, found: Mapping[str, Any]) -> list[Policy]:
    rows = found.get("policies")
    if not isinstance(rows, dict):
        return []
    policies, scaffold = [], str(found.get("scaffold", "act_write"))
    for name, row in rows.items():
        if isinstance(row, dict):
            values = {key: value for key, cell in row.items()
                      if (value := _value(cell)) is not None}
            curves = {key: curve for key, cell in row.items()
                      if (curve := _curve(key, cell)) is not None}
            policies.append(Policy(name, _kind(name), scaffold, f"eval/{stem}.json", values, curves))
    return policies


def _of_lines(run: Run) -> list[Policy]:
    lines = [line for line in run.lines if is_number(line.get("eval/performance"))]
    chosen = {line["step"] > 0: line for line in lines}
    return [
        Policy(f"step {line['step']}" if trained else "initial",
               "trained" if trained else "untrained", "act_write", "metrics.jsonl",
               {q: Value(float(line[f"eval/{q}"])) for q in _QUICK
                if is_number(line.get(f"eval/{q}"))}, {})
        for trained, line in chosen.items()
    ]


def _kind(name: str) -> str:
    if name == "branch point":
        return name
    return "trained" if name.startswith("step") else "untrained"


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


def _curve(key: str, cell: Any) -> Curve | None:
    """`by_position` and everything named `..._by_position`; a list, or {mean, se} of lists."""
    if not key.endswith("by_position"):
        return None
    means, errors = (cell.get("mean"), cell.get("se")) if isinstance(cell, dict) else (cell, [])
    if not isinstance(means, list) or not means or not all(map(is_number, means)):
        return None
    if not isinstance(errors, list) or len(errors) != len(means) or not all(
            map(is_number, errors)):
        errors = []
    return Curve([float(x) for x in means], [float(x) for x in errors])
