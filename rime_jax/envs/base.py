"""What the rollout loop asks of an environment: text in, text out, one task at a time."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from rime_jax.streams import Task


@dataclasses.dataclass(frozen=True)
class Turn:
    """The environment's answer to one reply of the actor.

    Attributes:
      message: text for the actor; may be empty when `done`.
      done: the task has ended.
      format_error: why the reply was not an action (`no_action`, …); None for a valid reply. An
        invalid reply spends the turn.
    """

    message: str
    done: bool
    format_error: str | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a task, read once it has ended (or was ended by the loop).

    Attributes:
      reward: r_t of the method; what ACT is trained on (Alchemy: the raw trial score).
      performance: the same on a scale where 1 is the best possible; what improvement w_t and all
        reports use. None where the task has no such scale (an oracle of 0): left out of means.
      solved: the task counts as solved.
      out_of_turns: the task ended because its turns were spent.
      message: what the writer is told about the result; may be empty.
      metrics: counters for the logs; one that is not finite counts as a crash of the environment.
    """

    reward: float
    performance: float | None
    solved: bool
    out_of_turns: bool
    message: str
    metrics: Mapping[str, float]


class Environment(Protocol):
    """One task from `reset` to `close`. Knows nothing of models or learning.

    `inline = True` promises that every call is pure computation of well under a millisecond; it is
    then called on the event loop itself. Otherwise each call runs in a thread of its own under
    `rollout.env_timeout_s`.
    """

    inline: bool

    def reset(self, task: Task) -> str:
        """Starts the task; returns the first observation."""

    def step(self, reply: str) -> Turn:
        """Takes the actor's reply (thinking already removed)."""

    def outcome(self) -> Outcome:
        """The result so far; called once, after the last step."""

    def close(self) -> None:
        """Frees everything; may be called at any time, more than once."""
