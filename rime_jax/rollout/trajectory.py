"""What a rollout leaves behind: samples to train on, and the record that people read."""

import dataclasses
import enum
from typing import Literal

import numpy as np

from rime_jax import memory, streams
from rime_jax.judge import base as judge_base

Role = Literal["act", "write"]


class Status(enum.StrEnum):
    """How a task ended. `INFRASTRUCTURE` members are never trained, least of all as reward 0."""

    SOLVED = "solved"
    FAILED = "failed"
    OUT_OF_TURNS = "out_of_turns"
    CONTEXT_LIMIT = "context_limit"
    FORMAT_ERRORS = "format_errors"
    ENV_CRASH = "env_crash"
    ENV_TIMEOUT = "env_timeout"
    SAMPLER_ERROR = "sampler_error"
    JUDGE_UNAVAILABLE = "judge_unavailable"


INFRASTRUCTURE = frozenset(
    {Status.ENV_CRASH, Status.ENV_TIMEOUT, Status.SAMPLER_ERROR, Status.JUDGE_UNAVAILABLE}
)


@dataclasses.dataclass(frozen=True)
class Sample:
    """One conversation to train on: the actor's whole task, or one memory.

    Attributes:
      role: who spoke the trained tokens.
      group: index of the stream within the batch; siblings share it.
      sibling: index within the group.
      position: index t of the task within the stream, from 0.
      ids: int32 [T], every token of the conversation, exactly as it was sampled or inserted.
      mask: bool [T], True for sampled tokens (provenance), False for everything else.
      logprobs: float32 [T], behaviour log-probability where `mask`, else 0.
      version: policy version of the oldest sampled token; -1 when nothing was sampled.
    """

    role: Role
    group: int
    sibling: int
    position: int
    ids: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    version: int


@dataclasses.dataclass(frozen=True)
class TaskRecord:
    """One position of a rollout.

    Attributes:
      status: how the task ended; a trainable one.
      reward: r_t; performance: on a scale of 1, None where the task has none.
      judge_status: None, or JUDGE_UNAVAILABLE when the judge failed (verdict is then None too).
      written: the memory the writer made, with the reason if it is malformed.
      memory_before: m_{t-1} as the actor saw it; memory_after: m_t as the next task sees it.
      transcript: (speaker, text) pairs, decoded for people, never encoded again.
      format_errors: reason → count over the replies of the task.
    """

    task: streams.Task
    status: Status
    judge_status: Status | None
    reward: float
    performance: float | None
    verdict: judge_base.Verdict | None
    memory_before: str
    memory_after: str
    written: memory.Written
    act: Sample
    write: Sample
    turns: int
    transcript: list[tuple[str, str]]
    format_errors: dict[str, int]
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One sibling's way through a stream.

    Attributes:
      tasks: the records, up to the failure if there was one.
      failure: the infrastructure status that ended it for good, or None.
      retried: infrastructure failures that a new start mended, by status.
    """

    stream: streams.Stream
    group: int
    sibling: int
    tasks: list[TaskRecord]
    failure: Status | None
    retried: dict[Status, int]
