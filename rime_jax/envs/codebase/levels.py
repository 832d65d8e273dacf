"""How hard the strategies of bugs are for a policy: pass rates, and the file that keeps them.

`rime_jax.levels_codebase` measures them; streams go from easy to hard by them (`env.levels_file`).
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rime_jax.envs.codebase import streams


class LevelsError(ValueError):
    """A file of levels that cannot be used; the message names the remedy."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Attributes:
      instance_id: of the task.
      strategy: how its bug was made, a name of `streams.PASS_RATES`.
      solved: episodes that solved it.
      played: all episodes but those that an infrastructure failure ended.
    """

    instance_id: str
    strategy: str
    solved: int
    played: int


class Journal:
    """The results so far, line by line in a file that survives any kill."""

    def __init__(self, path: pathlib.Path, setting: Mapping[str, Any]):
        """Args:
          path: the file; one that is there is gone on with.
          setting: what the results depend on, as JSON values; the first line of the file.

        Raises:
          LevelsError: the file is of another setting, or no journal.
        """
        self._path = path
        self.results: dict[str, Result] = {}
        if path.exists():
            self._read(json.loads(json.dumps(setting)))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append(setting)

    def add(self, result: Result) -> None:
        self._append(dataclasses.asdict(result))
        self.results[result.instance_id] = result

    def _read(self, setting: Mapping[str, Any]) -> None:
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            found, *rows = map(json.loads, whole.splitlines())
            self.results = {row["instance_id"]: Result(**row) for row in rows}
            differing = [name for name in sorted({*found, *setting})
                         if found.get(name) != setting.get(name)]
        except (ValueError, TypeError, KeyError) as error:
            raise LevelsError(f"{self._path} holds no results of this program ({error}); move it "
                              "away or choose another --out") from error
        if differing:
            raise LevelsError(
                f"{self._path} has results of other options ({', '.join(differing[:5])}); give "
                "those again to go on with it, or another --out")
        # The rest of a line that a kill cut off would spoil the next one.
        os.truncate(self._path, len(whole))

    def _append(self, value: Mapping[str, Any]) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps(value) + "\n")


def chosen(entries: Iterable[streams.Entry], per_strategy: int) -> list[streams.Entry]:
    """So many tasks of each strategy, drawn by hash; 0: all."""
    by_strategy = collections.defaultdict(list)
    for entry in entries:
        by_strategy[entry.strategy].append(entry)
    return [entry for _, own in sorted(by_strategy.items())
            for entry in sorted(own, key=_hash)[: per_strategy or None]]


def _hash(entry: streams.Entry) -> str:
    return hashlib.sha256(entry.instance_id.encode()).hexdigest()


def summary(setting: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """What `write` keeps: the setting, and for each strategy its pass rate with the counts."""
    strategies = {}
    for name in sorted({result.strategy for result in results}):
        own = [result for result in results if result.strategy == name and result.played]
        solved, played = sum(r.solved for r in own), sum(r.played for r in own)
        if played:
            strategies[name] = {"pass_rate": solved / played, "solved": solved, "played": played,
                                "tasks": len(own), "level": streams.level(
                                    name, {name: solved / played})}
    return {"setting": dict(setting), "strategies": strategies}


def write(path: pathlib.Path, found: Mapping[str, Any]) -> None:
    """Writes a file of levels; an old one stays until the new one is complete."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.",
                                     delete=False) as file:
        json.dump(found, file, indent=2)
        file.write("\n")
    os.replace(file.name, path)


def read(path: pathlib.Path) -> dict[str, float]:
    """Strategy → pass rate.

    Raises:
      LevelsError: the file cannot be read, or a rate is none.
    """
    try:
        found = {name: row["pass_rate"]
                 for name, row in json.loads(path.read_text())["strategies"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise LevelsError(f"{path} cannot be read as pass rates ({error!r}); make it with "
                          "python -m rime_jax.levels_codebase") from error
    for name, rate in found.items():
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise LevelsError(f"{path}: the pass_rate of {name} is {rate!r}; it must be from 0 "
                              "to 1")
    return found


def table(found: Mapping[str, Any]) -> str:
    """A summary as text, the easiest strategy first."""
    rows = sorted(found["strategies"].items(), key=lambda item: (-item[1]["pass_rate"], item[0]))
    return "\n".join(f"{name:16} {row['pass_rate']:.2f}  {row['solved']:4} of {row['played']:4} "
                     f"episodes, {row['tasks']:3} tasks  {row['level']}" for name, row in rows)
