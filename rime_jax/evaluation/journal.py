"""Finished tasks of an evaluation, on disk as soon as they are over.

A killed evaluation goes on where it was: all randomness of a task comes from its place, so what is
played later is what would have been played. A file belongs to one policy in one setting (its name
is their digest) and one process; all processes read all files of the digest.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from rime_jax import streams
from rime_jax.rollout.context import Carried
from rime_jax.rollout.history import Past
from rime_jax.rollout.trajectory import TaskRecord
from rime_jax.tracking import metrics


@dataclasses.dataclass(frozen=True)
class Row:
    """What an evaluation keeps of a task; fields as in `TaskRecord`."""

    condition: str
    group: int
    sibling: int
    position: int
    task: str
    status: str
    reward: float
    performance: float | None
    turns: int
    memory_before: str
    memory_after: str
    malformed: str | None
    past: Past | None = None

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.condition, self.group, self.sibling, self.position


class Journal:
    """Rows by condition, group, sibling and position; in memory alone where it has no file."""

    def __init__(self, file: pathlib.Path | None = None, shares: str = ""):
        """Reads what is there.

        Args:
          file: this process appends to it.
          shares: pattern of the files beside it that all processes wrote.
        """
        self._rows: dict[tuple, Row] = {}
        self._file = None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            for path in sorted(file.parent.glob(shares)):
                for line in path.read_bytes().split(b"\n"):
                    row = _row(line)
                    if row is not None:
                        self._rows[row.key] = row
            self._file = file.open("ab")
            # A line that a kill cut off must not swallow the next one.
            self._file.write(b"\n")

    def add(self, row: Row) -> None:
        self._rows[row.key] = row
        if self._file is not None:
            line = json.dumps(metrics.jsonable(dataclasses.asdict(row)))
            self._file.write(line.encode() + b"\n")
            self._file.flush()

    def get(self, condition: str, group: int, sibling: int, position: int) -> Row | None:
        return self._rows.get((condition, group, sibling, position))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def opened(directory: pathlib.Path, of: Mapping[str, Any], process: int) -> Journal:
    """The journal of what `of` describes.

    Args:
      of: everything that the results depend on, as JSON values.
      process: the number of this one.
    """
    text = json.dumps(metrics.jsonable(of), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    journal = Journal(directory / f"{digest}-{process}.jsonl", f"{digest}-*.jsonl")
    # For people: which file is whose.
    metrics.write_atomically(directory / f"{digest}.json", text.encode())
    return journal


class Kept:
    """See `rollout.context.Keeper`: the tasks of one condition."""

    def __init__(
        self, journal: Journal, condition: str,
        begins: Mapping[tuple[int, int], tuple[int, str]] | None = None,
    ):
        """Args:
          begins: (group, sibling) → position at which the rollout begins, and its memory there;
            one that is missing is not played. None: all begin at 0 with an empty memory.
        """
        self._journal, self._condition, self._begins = journal, condition, begins

    def start(self, stream: streams.Stream, group: int, sibling: int) -> tuple[int, Carried]:
        position, memory = 0, ""
        if self._begins is not None:
            position, memory = self._begins.get((group, sibling), (len(stream.tasks), ""))
        past: list[Past] = []
        while (row := self._journal.get(self._condition, group, sibling, position)) is not None:
            memory = row.memory_after
            if row.past is not None:
                past.append(row.past)
            position += 1
        return position, Carried(memory, tuple(past))

    def finished(
        self, group: int, sibling: int, position: int, record: TaskRecord, carried: Carried
    ) -> None:
        self._journal.add(Row(
            condition=self._condition, group=group, sibling=sibling, position=position,
            task=record.task.id, status=record.status.value, reward=record.reward,
            performance=record.performance, turns=record.turns,
            memory_before=record.memory_before, memory_after=record.memory_after,
            malformed=record.written.malformed, past=carried.past[-1] if carried.past else None))


def _row(line: bytes) -> Row | None:
    """None for a line that is torn."""
    try:
        found = json.loads(line)
        past = found.pop("past")
        if past is not None:
            past = Past(**{**past, "ids": tuple(past["ids"])})
        return Row(**found, past=past)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
