"""Finished tasks of an evaluation, on disk as soon as they are over.

A killed evaluation goes on where it was: all randomness of a task comes from its place, so what is
played later is what would have been played. A file belongs to one policy in one setting (its name
is their digest) and one process; all processes read all files of the digest.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_collections

import rime_jax
from rime_jax import distributed, streams
from rime_jax.rollout.context import Carried, GivenMemory, Place
from rime_jax.rollout.history import Past
from rime_jax.rollout.trajectory import TaskRecord
from rime_jax.tracking import metrics
from rime_jax.tracking.values import is_number


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
        self._told: Callable[[Row], None] | None = None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            for path in sorted(file.parent.glob(shares)):
                for line in path.read_bytes().split(b"\n"):
                    row = _row(line)
                    if row is not None:
                        self._rows[row.key] = row
            # Unbuffered, so that a line is one write and a kill tears none of those before it.
            self._file = file.open("ab", buffering=0)
            # A line that a kill cut off must not swallow the next one.
            self._file.write(b"\n")

    def add(self, row: Row) -> None:
        self._rows[row.key] = row
        if self._file is not None:
            line = json.dumps(metrics.jsonable(dataclasses.asdict(row)))
            self._file.write(line.encode() + b"\n")
        if self._told is not None:
            self._told(row)

    @property
    def finished(self) -> int:
        """Tasks that are in it."""
        return len(self._rows)

    def tell(self, about: Callable[[Row], None]) -> None:
        """Calls `about` with each row that is added."""
        self._told = about

    def get(self, condition: str, group: int, sibling: int, position: int) -> Row | None:
        return self._rows.get((condition, group, sibling, position))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@contextlib.contextmanager
def opened(
    directory: pathlib.Path, config: ml_collections.ConfigDict, who: Mapping[str, Any],
    processes: distributed.Processes = distributed.ALONE,
) -> Iterator[Journal]:
    """The journal of a policy in the setting of a configuration.

    How many streams, rollouts, runs or samples are played, and under which conditions, makes no
    other journal: each task has its place in it. A change of the program does.

    Args:
      directory: of the journals.
      who: JSON values that tell the policy from any other.
    """
    text = _text({"who": who, **_setting(config)})
    # The hosts' clocks and file systems may differ in what they say of a file.
    text = processes.gather(text)[0]
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    journal = Journal(directory / f"{name}-{processes.index}.jsonl", f"{name}-*.jsonl")
    if processes.first:  # For people: which file is whose.
        metrics.write_atomically(directory / f"{name}.json", text.encode())
    try:
        yield journal
    finally:
        journal.close()


def digest(who: Mapping[str, Any]) -> str:
    """Of the JSON values that tell a policy from any other: hexadecimal digits."""
    return hashlib.sha256(_text(who).encode()).hexdigest()


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(metrics.jsonable(values), sort_keys=True)


# Sections that the play of a task depends on, and what of them it does not: files count by what
# they hold.
_FILES = ("episodes_file", "split_file", "tasks_file", "libraries_file", "levels_file")
_WITHOUT = {
    "env": ("cache_dir", *_FILES),
    "rollout": ("streams_per_step", "group_size", "retries", "env_timeout_s"),
}


def _setting(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Everything beside the policy that the play of a task depends on: options, files, code."""
    found: dict[str, Any] = {
        section: {name: value for name, value in config[section].items() if name not in without}
        for section, without in _WITHOUT.items()}
    found["eval"] = {name: config.eval[name] for name in ("seed", "temperature")}
    named = [(section, name) for section in ("env", "eval") for name in _FILES
             if name in config[section] and config[section][name]]
    files = {f"{section}.{name}": pathlib.Path(config[section][name]) for section, name in named}
    package = pathlib.Path(rime_jax.__file__).parent
    files |= {str(path.relative_to(package)): path for path in package.rglob("*.py")}
    module, colon, _ = config.env.domain.partition(":")
    if colon:  # A domain of one's own.
        files[module] = pathlib.Path(str(sys.modules[module].__file__))
    contents = hashlib.sha256()
    for name in sorted(files):
        contents.update(name.encode() + hashlib.sha256(files[name].read_bytes()).digest())
    return found | {"files": contents.hexdigest()}


class Kept:
    """See `rollout.context.Keeper`: the tasks of one condition.

    A row counts where it is of the task that now stands there and read the memory that the task
    would now read; what lies behind one that does not was played in another game.
    """

    def __init__(
        self, journal: Journal, condition: str, given: GivenMemory | None = None,
        begins: Mapping[tuple[int, int], tuple[int, str]] | None = None,
    ):
        """Args:
          given: of the condition, as in `rollout.context.Context`.
          begins: (group, sibling) → position at which the rollout begins, and its memory there;
            one that is missing is not played. None: all begin at 0 with an empty memory.
        """
        self._journal, self._condition = journal, condition
        self._given, self._begins = given, begins

    def start(self, stream: streams.Stream, group: int, sibling: int) -> tuple[int, Carried]:
        position, memory = self._begin(stream, group, sibling)
        rows = self.rows(stream, group, sibling)
        past = tuple(row.past for row in rows if row.past is not None)
        return position + len(rows), Carried(rows[-1].memory_after if rows else memory, past)

    def rows(self, stream: streams.Stream, group: int, sibling: int) -> list[Row]:
        """What a rollout has played so far, in order."""
        position, memory = self._begin(stream, group, sibling)
        found: list[Row] = []
        for t, task in enumerate(stream.tasks[position:], start=position):
            row = self._journal.get(self._condition, group, sibling, t)
            if self._given is not None:
                memory = self._given(task, Place((), group, sibling, t, 0))
            if row is None or (row.task, row.memory_before) != (task.id, memory):
                break
            found.append(row)
            memory = row.memory_after
        return found

    def _begin(self, stream: streams.Stream, group: int, sibling: int) -> tuple[int, str]:
        if self._begins is None:
            return 0, ""
        return self._begins.get((group, sibling), (len(stream.tasks), ""))

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
    """None for a line that is torn, or that no evaluation has written."""
    try:
        found = json.loads(line)
        past = found.pop("past")
        if past is not None:
            past = Past(**{**past, "ids": tuple(past["ids"])})
        row = Row(**found, past=past)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    numbers = (row.reward, *([] if row.performance is None else [row.performance]))
    counts = (row.group, row.sibling, row.position, row.turns,
              *([] if past is None else past.ids))
    texts = (row.condition, row.task, row.status, row.memory_before, row.memory_after,
             *([] if row.malformed is None else [row.malformed]),
             *([] if past is None else [past.observation, past.ended, past.outcome]))
    fits = (all(map(is_number, numbers)) and all(type(x) is int and x >= 0 for x in counts)
            and all(isinstance(x, str) for x in texts))
    return row if fits else None
