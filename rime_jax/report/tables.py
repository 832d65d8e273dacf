"""The published numbers beside those of the runs: which run belongs to which row, and its cells."""

import collections
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rime_jax.report import evaluations, statistics
from rime_jax.report.evaluations import Policy, Value
from rime_jax.report.facts import domain, facts, options, published
from rime_jax.report.runs import Run

# A sum over all tasks of one stream, as the study's reward and gain.
_SUM = re.compile(r"(reward|gain)@(\d+)")

_Pairs = list[tuple[Run, Policy]]


@dataclasses.dataclass(frozen=True)
class Ours:
    """One experiment in a row: a run, or several that differ in the seed only.

    Attributes:
      runs: their names.
      policy: what was evaluated, and where that stands.
      changed: options by which it differs from the reference run of the table.
      values: column → value; a mean over the runs where there are several.
    """

    runs: Sequence[str]
    policy: Policy
    changed: Mapping[str, Any]
    values: Mapping[str, Value]


@dataclasses.dataclass(frozen=True)
class TableRow:
    """A row of the study, or one of our own (`published` is then empty)."""

    system: str
    who: str
    published: Mapping[str, float]
    ours: Sequence[Ours]


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns are key → title; `ours_only` are those that the study does not have."""

    id: str
    domain: str
    title: str
    note: str
    decimals: int
    columns: Mapping[str, str]
    ours_only: Mapping[str, str]
    rows: Sequence[TableRow]

    @property
    def has_ours(self) -> bool:
        return any(row.ours for row in self.rows)


def tables(runs: Sequence[Run]) -> list[Table]:
    """All tables of the study; what is of no row has one of its own, in the first table of its
    domain."""
    found = []
    sheets = collections.defaultdict(list)
    for sheet in published()["tables"]:
        sheets[sheet["domain"]].append(sheet)
    for name, own in sheets.items():
        found += _tables(own, [run for run in runs if domain(run) == name])
    return found


def _tables(sheets: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> list[Table]:
    """Those of one domain, from its runs."""
    played = [(run, policy) for run in runs for policy in _policies(run)]
    names = {row["name"] for sheet in sheets for row in sheet["rows"] if "name" in row}
    taken = [_placed(sheet["rows"], played, names) for sheet in sheets]
    placed = {run.name for rows in taken for pairs in rows for run, policy in pairs
              if policy.kind == "trained"}
    reference = _reference(sheets[0], runs)
    found = []
    for i, (sheet, rows) in enumerate(zip(sheets, taken, strict=True)):
        extra = dict(sheet.get("ours_only", {}))
        extra |= _unpublished_sums(sheets, played) if i == 0 else {}
        columns = [*sheet["columns"], *extra]
        made = [
            TableRow(row["system"], row.get("who", ""), row.get("published", {}),
                     _experiments(pairs, columns, reference))
            for row, pairs in zip(sheet["rows"], rows, strict=True)
            if row.get("published") or pairs
        ]
        if i == 0:
            made += _others(played, placed, columns, reference)
        filled = {column for row in made for own in row.ours for column in own.values}
        extra = {column: title for column, title in extra.items() if column in filled}
        found.append(Table(sheet["id"], sheet["domain"], sheet["title"], sheet["note"],
                           sheet["decimals"], sheet["columns"], extra, made))
    return found


def _policies(run: Run) -> list[Policy]:
    """Those of the evaluations; one without values while a run that trains has no other."""
    found = evaluations.policies(run)
    learns = run.config.get("steps") != 0 and run.config.get("learner.lr") != 0
    if learns and all(p.kind in ("untrained", "branch point") for p in found):
        found = [*found, Policy("not evaluated yet", "trained", "act_write", "", {}, {})]
    return found


def _placed(
    rows: Sequence[Mapping[str, Any]], played: _Pairs, names: set[str]
) -> list[_Pairs]:
    """For each row of a table the policies that belong there.

    Args:
      names: of experiments that rows of any table ask for; such a trained policy is of those only.
        The others are of the first row that the facts of their run fit.
    """
    found: list[_Pairs] = [[] for _ in rows]
    for run, policy in played:
        known = facts(run)
        name = next((name for name in names if _is_called(run, name)), None)
        for i, row in enumerate(rows):
            if not _fits(row, policy):
                continue
            told = "when" in row and all(known[k] == value for k, value in row["when"].items())
            if "policy" in row or (told if name is None else row.get("name") == name):
                found[i].append((run, policy))
                break
    return found


def _is_called(run: Run, name: str) -> bool:
    """Whether a run is of an experiment of that name, of whatever size (memory_half_tiny)."""
    own = str(run.config.get("name"))
    return own == name or own.startswith(name + "_")


def _fits(row: Mapping[str, Any], policy: Policy) -> bool:
    """Whether a row is about policies of this kind, played in this way."""
    ours = {"name", "when"} & row.keys()
    return policy.scaffold == row.get("scaffold", "act_write") and (
        policy.kind == row.get("policy", "trained" if ours else None))


def _unpublished_sums(sheets: Sequence[Mapping[str, Any]], played: _Pairs) -> dict[str, str]:
    """Columns for sums over streams of other lengths than those of the study."""
    known = {column for sheet in sheets for column in sheet["columns"]}
    found = {key for _, policy in played for key in policy.values
             if _SUM.fullmatch(key) and key not in known}

    def order(key: str) -> tuple[int, str]:
        return int(key.partition("@")[2]), "" if key.startswith("reward") else key

    return {key: "{0}, {2} tasks".format(*key.partition("@")) for key in sorted(found, key=order)}


def _reference(sheet: Mapping[str, Any], runs: Sequence[Run]) -> Run | None:
    """The run beside whose configuration the others are described: one of the main row, or any;
    of these the one that differs least from all."""
    main = next(row["when"] for row in sheet["rows"] if row.get("main"))
    known = {run.name: facts(run) for run in runs}
    chosen = [run for run in runs if all(known[run.name][k] == v for k, v in main.items())] or runs
    return min(chosen, key=_distances(runs), default=None)


def _distances(runs: Sequence[Run]) -> Callable[[Run], int]:
    """Of a run the number of options in which the others differ from it, over all of them.

    From counts of the values: comparing each run with each takes hours where there are thousands.
    """
    own = {run.name: options(run) for run in runs}
    counts = {name: collections.Counter(_key(found.get(name)) for found in own.values())
              for name in {name: None for found in own.values() for name in found}}
    return lambda run: sum(len(runs) - count[_key(own[run.name].get(name))]
                           for name, count in counts.items())


def _key(value: Any) -> Any:
    """Equal for equal values, and hashable."""
    return repr(value) if isinstance(value, (list, dict)) else value


def _others(
    played: _Pairs, placed: set[str], columns: Sequence[str], reference: Run | None
) -> list[TableRow]:
    """A row for each policy that no row of the study is about."""
    rows = collections.defaultdict(list)
    for run, policy in played:
        scaffold = "" if policy.scaffold == "act_write" else policy.scaffold.replace("_", "-")
        if policy.kind == "other":
            rows[policy.name, scaffold].append((run, policy))
        elif policy.kind == "trained" and run.name not in placed:
            rows[str(run.config.get("name", run.name)), scaffold].append((run, policy))
    return [TableRow(name, scaffold, {}, _experiments(pairs, columns, reference))
            for (name, scaffold), pairs in rows.items()]


def _experiments(pairs: _Pairs, columns: Sequence[str], reference: Run | None) -> list[Ours]:
    """Runs that differ in the seed only become one; equal untrained policies too."""
    groups: dict[str, _Pairs] = collections.defaultdict(list)
    for run, policy in pairs:
        if policy.kind == "trained":
            key = repr(sorted(options(run).items()))
        else:
            key = repr((policy.name, sorted(policy.values.items())))
        groups[key].append((run, policy))
    found = []
    for own in groups.values():
        (first, policy), names = own[0], [run.name for run, _ in own]
        trained = policy.kind == "trained"
        measured = [p for _, p in (own if trained else own[:1])]
        values = {column: value for column in columns
                  if (value := _over_runs(measured, column)) is not None}
        found.append(Ours(names, policy, _changed(first, reference) if trained else {}, values))
    return sorted(found, key=lambda ours: len(ours.changed))


def _over_runs(own: Sequence[Policy], column: str) -> Value | None:
    """One run's value as it is; the mean of several with its standard error over runs."""
    values = [policy.values[column] for policy in own if column in policy.values]
    if len(values) < 2:
        return values[0] if values else None
    found = statistics.mean(value.mean for value in values)
    return Value(found.mean, se=None if math.isnan(found.se) else found.se, n=found.n)


def _changed(run: Run, reference: Run | None) -> dict[str, Any]:
    """What a run has instead of the reference's options; None for one that it does not have."""
    if reference is None:
        return {}
    own, other = options(run), options(reference)
    return {name: own.get(name) for name in sorted({*own, *other})
            if own.get(name) != other.get(name)}
