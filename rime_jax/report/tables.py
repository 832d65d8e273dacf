"""The published numbers beside those of the runs: which run belongs to which row, and its cells."""

import collections
import dataclasses
import functools
import importlib.resources
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rime_jax.report import evaluations, statistics
from rime_jax.report.evaluations import Policy, Value
from rime_jax.report.runs import Run, is_number

# Options in which runs of one experiment may differ.
_INCIDENTAL = re.compile(r"name|seed|run_dir|resume|track\..*|judge\.(urls|cache_dir|concurrency)")


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
    """All tables of the study; every run stands in the first one of its domain."""
    seen: set[str] = set()
    found = []
    for sheet in published()["tables"]:
        own = [run for run in runs if domain(run) == sheet["domain"]]
        found.append(_table(sheet, own, first=sheet["domain"] not in seen))
        seen.add(sheet["domain"])
    return found


@functools.cache
def published() -> dict[str, Any]:
    """published.json: the numbers of the study and the facts by which a run belongs to a row."""
    text = importlib.resources.files("rime_jax.report").joinpath("published.json").read_text()
    return json.loads(text)


def facts(run: Run) -> dict[str, Any]:
    """What published.json asks of a run.

    credit: what pays the writer; exploration: whether it is rewarded; parameters: shared,
    decoupled, frozen writer or frozen actor; stream: single, or the segments (3+3); order: of the
    tasks; branched: whether it starts from another run's checkpoint.
    """
    config = run.config
    exploration = config.get("reward.exploration")
    return {
        "credit": config.get("reward.writer"),
        "exploration": is_number(exploration) and exploration > 0,
        "parameters": _parameters(config),
        "stream": _stream(config),
        "order": config.get("env.order"),
        "branched": bool(config.get("model.branch_from")),
    }


def domain(run: Run) -> str:
    """Runs from before there was a choice are of Alchemy."""
    return str(run.config.get("env.domain", "alchemy"))


def _parameters(config: Mapping[str, Any]) -> str:
    act, write = config.get("roles.act"), config.get("roles.write")
    trained = config.get("roles.train", [act])
    if act == write:
        return "shared"
    if write not in trained:
        return "frozen writer"
    return "decoupled" if act in trained else "frozen actor"


def _stream(config: Mapping[str, Any]) -> str:
    if config.get("env.domain") == "codebase":
        segments = str(config.get("env.segments", ""))
        return "single" if segments == "1" else segments
    return "single" if config.get("env.trials") == 1 else str(config.get("env.trials"))


def _table(sheet: Mapping[str, Any], runs: Sequence[Run], first: bool) -> Table:
    played = {run.name: evaluations.policies(run) for run in runs}
    taken: dict[int, list[tuple[Run, Policy]]] = collections.defaultdict(list)
    for run in runs:
        known = facts(run)
        for policy in played[run.name]:
            for i, row in enumerate(sheet["rows"]):
                if _belongs(row, known, policy):
                    taken[i].append((run, policy))
                    break
    reference = _reference(sheet, runs)
    columns = list(sheet["columns"]) + list(sheet.get("ours_only", {}))
    rows = [
        TableRow(row["system"], row.get("who", ""), row.get("published", {}),
                 _experiments(taken[i], columns, reference))
        for i, row in enumerate(sheet["rows"]) if row.get("published") or taken[i]
    ]
    if first:
        rows += _others(runs, played, taken.values(), columns, reference)
    return Table(sheet["id"], sheet["domain"], sheet["title"], sheet["note"], sheet["decimals"],
                 sheet["columns"], sheet.get("ours_only", {}), rows)


def _belongs(row: Mapping[str, Any], known: Mapping[str, Any], policy: Policy) -> bool:
    """Whether a policy of a run with these facts is what a row of the study is about."""
    if policy.scaffold != row.get("scaffold", "act_write"):
        return False
    wanted = row.get("policy", "trained" if "when" in row else None)
    if wanted != policy.kind:
        return False
    return all(known[name] == value for name, value in row.get("when", {}).items())


def _reference(sheet: Mapping[str, Any], runs: Sequence[Run]) -> Run | None:
    """The run beside whose configuration the others are described: the main one, or the first."""
    main = [row["when"] for row in sheet["rows"] if "RIME" in row["system"]]
    for run in runs:
        if any(facts(run)[k] == v for when in main for k, v in when.items()) and all(
                facts(run)[k] == v for when in main for k, v in when.items()):
            return run
    return runs[0] if runs else None


def _others(
    runs: Sequence[Run], played: Mapping[str, Sequence[Policy]],
    taken: Iterable[Sequence[tuple[Run, Policy]]], columns: Sequence[str], reference: Run | None,
) -> list[TableRow]:
    """A row for each experiment that is of no row of the study, or was not evaluated yet."""
    placed = {run.name for pairs in taken for run, policy in pairs if policy.kind == "trained"}
    rows = collections.defaultdict(list)
    for run in runs:
        if run.name not in placed:
            trained = [p for p in played[run.name] if p.kind == "trained"]
            policy = trained[0] if trained else Policy(
                "not evaluated yet", "trained", "act_write", "", {}, {})
            rows[str(run.config.get("name", run.name))].append((run, policy))
    return [TableRow(name, "", {}, _experiments(pairs, columns, reference))
            for name, pairs in rows.items()]


def _experiments(
    pairs: Sequence[tuple[Run, Policy]], columns: Sequence[str], reference: Run | None
) -> list[Ours]:
    """Runs that differ in the seed only become one; equal untrained policies too."""
    groups: dict[str, list[tuple[Run, Policy]]] = collections.defaultdict(list)
    for run, policy in pairs:
        if policy.kind == "untrained":
            key = repr(sorted(policy.values.items()))
        else:
            key = repr(sorted((k, v) for k, v in run.config.items()
                              if not _INCIDENTAL.fullmatch(k)))
        groups[key].append((run, policy))
    found = []
    for own in groups.values():
        (first, policy), names = own[0], [run.name for run, _ in own]
        several = policy.kind != "untrained"
        values = {column: value for column in columns
                  if (value := _over_runs([p for _, p in (own if several else own[:1])], column))}
        changed = {} if policy.kind == "untrained" else _changed(first, reference)
        found.append(Ours(names, policy, changed, values))
    return found


def _over_runs(own: Sequence[Policy], column: str) -> Value | None:
    """One run's value as it is; the mean of several with its standard error over runs."""
    values = [policy.values[column] for policy in own if column in policy.values]
    if len(values) < 2:
        return values[0] if values else None
    found = statistics.mean(value.mean for value in values)
    return Value(found.mean, se=None if math.isnan(found.se) else found.se, n=found.n)


def _changed(run: Run, reference: Run | None) -> dict[str, Any]:
    if reference is None or run.name == reference.name:
        return {}
    names = sorted({*run.config, *reference.config})
    return {name: run.config.get(name) for name in names if not _INCIDENTAL.fullmatch(name)
            and run.config.get(name) != reference.config.get(name)}
