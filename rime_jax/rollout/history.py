"""The conversation of the in-context scaffold: earlier tasks as they were, the oldest dropped."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rime_jax import prompts


@dataclasses.dataclass(frozen=True)
class Past:
    """A task that was played, as a later one finds it in its conversation.

    Attributes:
      observation: what it opened with.
      ids: everything from its first reply on, as sampled and inserted.
      ended: what the environment told after the last reply.
      outcome: how the task ended.
    """

    observation: str
    ids: tuple[int, ...]
    ended: str
    outcome: str


def conversation(
    chat: Any, wording: prompts.Prompts, past: Sequence[Past], observation: str, room: int
) -> tuple[list[int], tuple[Past, ...]]:
    """Earlier tasks and the opening of a new one: the ids, and the tasks that are left in them.

    The oldest tasks are dropped until `room` tokens suffice; the new task alone may take more.
    What is left keeps its ids (contract of token provenance): only the texts between tasks, which
    nobody sampled, are encoded.

    Args:
      chat: of the actor.
      wording: of the domain.
      past: in the order of play.
      observation: what the new task opens with.
      room: tokens that the conversation may take.
    """
    # From the end: each task with the turn that leads on from it.
    kept: list[list[int]] = []
    following, length = observation, 0
    for first in range(len(past) - 1, -1, -1):
        task = past[first]
        last = task.ids[-1] if task.ids else None
        piece = [*task.ids,
                 *chat.turn(wording.next_task(task.ended, task.outcome, following), last)]
        opening = chat.opening(wording.in_context(task.observation))
        if len(opening) + len(piece) + length > room:
            break
        kept.append(piece)
        length += len(piece)
        following = task.observation
    ids = chat.opening(wording.in_context(following))
    for piece in reversed(kept):
        ids += piece
    return ids, tuple(past[len(past) - len(kept):])
