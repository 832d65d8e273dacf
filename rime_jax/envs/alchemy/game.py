"""The rules of Symbolic Alchemy: one trial, and an episode of trials with integer actions."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import graphs

# Slots of the benchmark's action numbering and observation vector.
STONE_SLOTS = 3
POTION_SLOTS = 12

EventKind = Literal["potion", "bank", "end", "noop", "nothing"]
Boundary = Literal[0, 1, 2]


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a trial is made of. The defaults are the benchmark's.

    Attributes:
      stones: stones in a trial, 1 to 3.
      potions: potions in a trial, 1 to 12.
      max_steps: steps after which a trial ends; every action spends one.
      end_trial_action: the trial can be ended early.
      values: whether the player is told a stone's value always (`shown`) or only when it is banked
        (`hidden`). Presentation only.
      supply: `random` draws potions uniformly; `every_colour` gives potions / 6 of each.
      end_when_banked: the trial ends with its last stone. The benchmark's does not.
      min_oracle: trials are drawn again until the oracle reaches this value; 0 takes any.
    """

    stones: int = 3
    potions: int = 12
    max_steps: int = 20
    end_trial_action: bool = False
    values: Literal["shown", "hidden"] = "shown"
    supply: Literal["random", "every_colour"] = "random"
    end_when_banked: bool = False
    min_oracle: int = 0

    def __post_init__(self):
        _require(1 <= self.stones <= STONE_SLOTS, "stones", self.stones, f"1 to {STONE_SLOTS}")
        _require(1 <= self.potions <= POTION_SLOTS, "potions", self.potions, f"1 to {POTION_SLOTS}")
        _require(self.max_steps >= 1, "max_steps", self.max_steps, "at least 1")
        _require(self.values in ("shown", "hidden"), "values", self.values, "shown or hidden")
        supplies = ("random", "every_colour")
        _require(self.supply in supplies, "supply", self.supply, "random or every_colour")
        even = self.supply == "random" or self.potions % graphs.POTIONS == 0
        _require(even, "potions", self.potions, "a multiple of 6 where supply is every_colour")
        best = self.stones * chemistry_lib.VALUES[chemistry_lib.BEST_CORNER]
        _require(0 <= self.min_oracle <= best, "min_oracle", self.min_oracle, f"0 to {best}")


@dataclasses.dataclass(frozen=True)
class Trial:
    """The items a trial starts with: latent corners 0..7 and latent potions 0..5, by slot."""

    stones: tuple[int, ...]
    potions: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Event:
    """What one step did.

    Attributes:
      kind: `nothing` is an impossible action: a missing stone, a used potion, an end that the rules
        do not have. A potion without effect is a `potion` with `before == after`.
      stone: stone slot of the action, None where it has none.
      potion: potion slot of the action, None where it has none.
      before: latent corner of the stone before the step.
      after: latent corner after it; None once banked.
      reward: value of the banked stone, else 0.
    """

    kind: EventKind
    stone: int | None = None
    potion: int | None = None
    before: int | None = None
    after: int | None = None
    reward: int = 0


class TrialGame:
    """The state of one trial. Every method but the constructor is one step.

    Attributes:
      trial: the items that it started with.
      stones: latent corner by slot, None once banked.
      potions: latent potion by slot, None once used.
      steps: steps spent.
      score: sum of rewards.
      done: the trial has ended; a further step raises RuntimeError.
    """

    def __init__(self, chemistry: chemistry_lib.Chemistry, trial: Trial, rules: Rules):
        self.chemistry = chemistry
        self.trial = trial
        self.rules = rules
        self.stones: list[int | None] = list(trial.stones)
        self.potions: list[int | None] = list(trial.potions)
        self.steps = 0
        self.score = 0
        self.done = False

    def use_potion(self, stone: int, potion: int) -> Event:
        """Puts the stone of a slot into the potion of a slot; the potion is used up."""
        corner, kind = _item(self.stones, stone), _item(self.potions, potion)
        if corner is None or kind is None:
            return self._spend(Event("nothing", stone, potion, corner, corner))
        after = self.chemistry.potion_effect(corner, kind)
        self.stones[stone] = after
        self.potions[potion] = None
        return self._spend(Event("potion", stone, potion, corner, after))

    def bank(self, stone: int) -> Event:
        """Puts the stone of a slot into the cauldron for its value."""
        corner = _item(self.stones, stone)
        if corner is None:
            return self._spend(Event("nothing", stone))
        self.stones[stone] = None
        reward = chemistry_lib.VALUES[corner]
        self.score += reward
        return self._spend(Event("bank", stone, None, corner, None, reward))

    def end(self) -> Event:
        """Ends the trial, where the rules have that action."""
        if not self.rules.end_trial_action:
            return self._spend(Event("nothing"))
        event = self._spend(Event("end"))
        self.done = True
        return event

    def noop(self) -> Event:
        return self._spend(Event("noop"))

    def _spend(self, event: Event) -> Event:
        if self.done:
            raise RuntimeError("the trial has ended; start a new TrialGame")
        self.steps += 1
        all_banked = self.rules.end_when_banked and all(s is None for s in self.stones)
        self.done = self.steps >= self.rules.max_steps or all_banked
        return event


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of an episode.

    Attributes:
      reward: value of the banked stone, else 0.
      boundary: 0 in mid-trial; 1 if the step ended a trial, whose successor is now in `game`; 2 if
        it ended the episode.
      event: what the step did.
    """

    reward: int
    boundary: Boundary
    event: Event


class SymbolicAlchemy:
    """A whole episode with the benchmark's integer actions and observation vector.

    Attributes:
      game: the trial in play; after the last step, the last trial.
      trial: its index.
      done: the episode has ended; a further step raises RuntimeError.
    """

    def __init__(self, chemistry: chemistry_lib.Chemistry, trials: Sequence[Trial], rules: Rules):
        self.chemistry = chemistry
        self.rules = rules
        self.trial = 0
        self.done = False
        self._trials = tuple(trials)
        self.game = TrialGame(chemistry, self._trials[0], rules)

    @property
    def num_actions(self) -> int:
        return 1 + self.rules.end_trial_action + STONE_SLOTS * (POTION_SLOTS + 1)

    def step(self, action: int) -> Step:
        """Takes an integer action: with the end-trial action 0 ends, 1 does nothing and then
        2 + 13 * stone + (0 for the cauldron, 1 + potion); without it, one less.

        Raises:
          ValueError: the action is outside 0 .. num_actions - 1.
          RuntimeError: the episode has ended.
        """
        if self.done:
            raise RuntimeError("the episode has ended; start a new SymbolicAlchemy")
        if not 0 <= action < self.num_actions:
            raise ValueError(f"action {action} is outside 0..{self.num_actions - 1}")
        event = self._act(action - self.rules.end_trial_action)
        if not self.game.done:
            return Step(event.reward, 0, event)
        if self.trial + 1 == len(self._trials):
            self.done = True
            return Step(event.reward, 2, event)
        self.trial += 1
        self.game = TrialGame(self.chemistry, self._trials[self.trial], self.rules)
        return Step(event.reward, 1, event)

    def observation(self) -> np.ndarray:
        """[39] float32: three stones [c0, c1, c2, sum of latent coordinates / 3, used], then twelve
        potions [colour / 3 - 1, used]. An empty slot is [2, 2, 2, 2, 1], or [1, 1]."""
        stones = np.tile(np.array([2, 2, 2, 2, 1], np.float32), (STONE_SLOTS, 1))
        potions = np.ones((POTION_SLOTS, 2), np.float32)
        for slot, corner in enumerate(self.game.stones):
            if corner is not None:
                coordinates = self.chemistry.perceived_stones[corner]
                stones[slot] = (*coordinates, chemistry_lib.SUMS[corner] / 3, 0)
        for slot, potion in enumerate(self.game.potions):
            if potion is not None:
                potions[slot] = (self.chemistry.perceived_potions[potion] / 3 - 1, 0)
        return np.concatenate([stones.ravel(), potions.ravel()])

    def _act(self, action: int) -> Event:
        """`action` in the numbering where -1 ends the trial and 0 does nothing."""
        if action == -1:
            return self.game.end()
        if action == 0:
            return self.game.noop()
        stone, place = divmod(action - 1, POTION_SLOTS + 1)
        return self.game.bank(stone) if place == 0 else self.game.use_potion(stone, place - 1)


def _item(slots: list[int | None], slot: int) -> int | None:
    return slots[slot] if 0 <= slot < len(slots) else None


def _require(valid: bool, field: str, value: object, allowed: str) -> None:
    if not valid:
        raise ValueError(f"Rules.{field} is {value!r}; it must be {allowed}")
