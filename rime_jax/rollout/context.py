"""What the rollouts of a batch share, where a task stands, and what reaches the next task."""

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol

import ml_collections

from rime_jax import streams
from rime_jax.judge import base as judge_base
from rime_jax.policy import chat as chat_lib
from rime_jax.rollout.domain import Domain
from rime_jax.rollout.history import Past
from rime_jax.rollout.trajectory import Role, TaskRecord
from rime_jax.sampler import base as sampler_base
from rime_jax.sampler import messages

# What reaches the next task: the written memory alone, or the conversation of all tasks so far.
Scaffold = Literal["act_write", "in_context"]


@dataclasses.dataclass(frozen=True)
class Speaker:
    """A model that speaks: its sampler, and how its conversations become ids."""

    sampler: sampler_base.Sampler
    chat: chat_lib.ChatTokens | messages.MessageTokens


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a task stands: the source of its randomness and the labels of its samples."""

    seed: tuple[int, ...]
    group: int
    sibling: int
    position: int
    attempt: int

    def seed_of(self, role: Role) -> tuple[int, ...]:
        return (*self.seed, self.group, self.sibling, self.position, self.attempt,
                ("act", "write").index(role))


# (task, where it stands) → the memory that it starts from.
GivenMemory = Callable[[streams.Task, Place], str]


@dataclasses.dataclass(frozen=True)
class Context:
    """What all rollouts share.

    Attributes:
      sampler, chat: of the actor.
      judge: None: no exploration scores at all (not a failure).
      options: `config.rollout`.
      judge_timeout_s: seconds for one verdict; None: the judge sees to it.
      temperature: of sampling.
      given_memory: the memory of each task, instead of the one written before; nothing is
        written, judged or carried then. A constant '' makes the stateless counterpart of a
        checkpoint.
      scaffold: `in_context` shows no memory and writes none: earlier tasks stay in the
        conversation. Its samples are for evaluation only: a reply may have been sampled behind
        earlier tasks that its sample no longer holds.
      writer: who writes the memory, where that is another model than the actor's; None: the same.
        It then reads the task in a conversation of its own, whatever `rollout.writer_context` says.
    """

    sampler: sampler_base.Sampler
    judge: judge_base.Judge | None
    domain: Domain
    chat: chat_lib.ChatTokens | messages.MessageTokens
    options: ml_collections.ConfigDict
    judge_timeout_s: float | None
    temperature: float
    given_memory: GivenMemory | None = None
    scaffold: Scaffold = "act_write"
    writer: Speaker | None = None

    def speaker(self, role: Role) -> Speaker:
        """Who plays a role."""
        if role == "write" and self.writer is not None:
            return self.writer
        return Speaker(self.sampler, self.chat)


@dataclasses.dataclass(frozen=True)
class Carried:
    """What reaches the next task.

    Attributes:
      memory: of `act_write`.
      past: every task so far, of `in_context`.
    """

    memory: str = ""
    past: tuple[Past, ...] = ()


class Keeper(Protocol):
    """Keeps finished tasks, so that a rollout can go on where a killed program left it."""

    def start(self, stream: streams.Stream, group: int, sibling: int) -> tuple[int, Carried]:
        """The position at which a rollout begins, and what reaches it; (0, Carried()) is anew."""

    def finished(
        self, group: int, sibling: int, position: int, record: TaskRecord, carried: Carried
    ) -> None:
        """Takes a task, and what reaches the one after it, as soon as it is over."""
