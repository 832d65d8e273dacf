"""Tasks, streams of tasks, and a resumable source of streams."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of a stream: everything its environment needs to start, and nothing more.

    Attributes:
      id: unique name of the task.
      payload: the environment's own description; JSON values and plain dataclasses only.
      segment: index of the segment (repository) within the stream; 0 where there is one.
    """

    id: str
    payload: Any
    segment: int = 0


@dataclasses.dataclass(frozen=True)
class Stream:
    """T related tasks in the order in which an agent meets them.

    Attributes:
      id: unique name of the stream.
      tasks: the T tasks.
      info: facts for the logs (difficulty tier, repositories); never shown to the policy. `pass`
        counts how often its tasks were dealt before; without it they are new.
    """

    id: str
    tasks: tuple[Task, ...]
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class StreamSource:
    """Deals streams one after another: the i-th stream of a run is a function of (seed, i) alone.

    The whole state is one integer, so a checkpoint stores it exactly and a resumed run deals what
    the unbroken run would have dealt.
    """

    def __init__(self, make: Callable[[int, np.random.Generator], Stream], seed: int):
        """`make(i, rng)` builds stream i; `rng` is seeded by (seed, i)."""
        self._make = make
        self._seed = seed
        self._next = 0

    def take(self, n: int) -> list[Stream]:
        """The next n streams."""
        dealt = range(self._next, self._next + n)
        self._next += n
        return [self._make(i, np.random.default_rng((self._seed, i))) for i in dealt]

    def state(self) -> int:
        return self._next

    def restore(self, state: int) -> None:
        self._next = int(state)
