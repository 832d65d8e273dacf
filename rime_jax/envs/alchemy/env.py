"""Symbolic Alchemy as text: one trial is one task."""

import dataclasses
from typing import Literal, Protocol

from rime_jax.envs import base
from rime_jax.envs.alchemy import game as game_lib
from rime_jax.streams import Task

_COUNTERS = (
    "format_errors",
    "invalid_actions",
    "potions_used",
    "potions_without_effect",
    "banked",
)

# A slot that no item has: the action it stands in is impossible.
MISSING = -1


@dataclasses.dataclass(frozen=True)
class Action:
    """What a reply asks for.

    Attributes:
      kind: `potion` (put a stone into a potion), `bank` (into the cauldron) or `end`.
      stone: stone slot; None for `end`.
      potion: potion slot; None unless `potion`. Either may name a slot that is empty or not there
        (`MISSING`): the action is then impossible, which is not a format error.
    """

    kind: Literal["potion", "bank", "end"]
    stone: int | None = None
    potion: int | None = None


class TextForm(Protocol):
    """How a trial reads and how replies are read."""

    def opening(self, game: game_lib.TrialGame) -> str:
        """The first observation."""

    def parse(self, reply: str, game: game_lib.TrialGame) -> Action | str:
        """The action of a reply, or the reason why there is none (`no_action`, `empty_reply`)."""

    def message(
        self, game: game_lib.TrialGame, event: game_lib.Event, format_error: str | None
    ) -> str:
        """The observation after a step; `event` is a `noop` when there is a format error."""

    def result(self, game: game_lib.TrialGame) -> str:
        """What the writer is told once the trial has ended."""


def slot_of_colour(game: game_lib.TrialGame, colour: int) -> int:
    """The first slot that still holds a potion of a perceived colour 0..5, or `MISSING`."""
    potion = game.chemistry.latent_potions[colour]
    return game.potions.index(potion) if potion in game.potions else MISSING


class AlchemyEnvironment:
    """`base.Environment` of one trial.

    The payload of its tasks is {chemistry: Chemistry, trial: Trial, oracle: int}. The reward is the
    raw score of the trial, the performance score / oracle (None where the oracle is not positive).
    A reply without an action spends a step, and so does an impossible action.
    """

    inline = True

    def __init__(self, rules: game_lib.Rules, form: TextForm):
        self._rules = rules
        self._form = form
        self._game: game_lib.TrialGame | None = None

    def reset(self, task: Task) -> str:
        payload = task.payload
        self._oracle: int = payload["oracle"]
        self._game = game_lib.TrialGame(payload["chemistry"], payload["trial"], self._rules)
        self._counts = dict.fromkeys(_COUNTERS, 0)
        return self._form.opening(self._game)

    def step(self, reply: str) -> base.Turn:
        game = self._playing()
        action = self._form.parse(reply, game)
        format_error = action if isinstance(action, str) else None
        event = game.noop() if isinstance(action, str) else act(game, action)
        self._count(event, format_error)
        return base.Turn(self._form.message(game, event, format_error), game.done, format_error)

    def outcome(self) -> base.Outcome:
        game = self._playing()
        has_scale = self._oracle > 0
        return base.Outcome(
            reward=float(game.score),
            performance=game.score / self._oracle if has_scale else None,
            solved=has_scale and game.score >= self._oracle,
            out_of_turns=game.steps >= self._rules.max_steps,
            message=self._form.result(game),
            metrics={**self._counts, "steps": game.steps, "oracle": self._oracle},
        )

    def close(self) -> None:
        self._game = None

    def _playing(self) -> game_lib.TrialGame:
        if self._game is None:
            raise RuntimeError("no trial is open; call reset(task) first")
        return self._game

    def _count(self, event: game_lib.Event, format_error: str | None) -> None:
        self._counts["format_errors"] += format_error is not None
        self._counts["invalid_actions"] += event.kind == "nothing"
        self._counts["potions_used"] += event.kind == "potion"
        no_effect = event.kind == "potion" and event.before == event.after
        self._counts["potions_without_effect"] += no_effect
        self._counts["banked"] += event.kind == "bank"


def act(game: game_lib.TrialGame, action: Action) -> game_lib.Event:
    """Carries out a parsed action."""
    if action.kind == "end":
        return game.end()
    if action.kind == "bank":
        return game.bank(action.stone)
    return game.use_potion(action.stone, action.potion)
