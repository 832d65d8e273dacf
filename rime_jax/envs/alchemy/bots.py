"""Reference players that learn nothing: the floors under every result.

A player is called with the game of each trial of an episode in turn and plays it to where it wants
to stop. Published scores on the benchmark's 1,000 evaluation episodes (arXiv 2102.02926): 147.0 an
episode for the random player, 67.4 for the bank-only one.
"""

from collections.abc import Callable, Sequence

import numpy as np

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import game as game_lib

Player = Callable[[game_lib.TrialGame], None]


def play_episode(
    player: Player,
    chemistry: chemistry_lib.Chemistry,
    trials: Sequence[game_lib.Trial],
    rules: game_lib.Rules,
) -> list[int]:
    """The score of each trial. `player` must be new: it may carry knowledge between trials."""
    scores = []
    for trial in trials:
        game = game_lib.TrialGame(chemistry, trial, rules)
        player(game)
        scores.append(game.score)
    return scores


def random_player(rng: np.random.Generator) -> Player:
    """Puts random stones that are not yet the best into random potions, then banks.

    It goes on until potions or improvable stones run out, or only the steps for banking are left.
    """

    best = chemistry_lib.BEST_CORNER

    def play(game: game_lib.TrialGame) -> None:
        while not game.done:
            stones = [i for i, s in enumerate(game.stones) if s not in (None, best)]
            potions = [i for i, p in enumerate(game.potions) if p is not None]
            steps_left = game.rules.max_steps - game.steps
            if not stones or not potions or steps_left <= len(positive_stones(game)):
                break
            game.use_potion(int(rng.choice(stones)), int(rng.choice(potions)))
        bank_positive(game)

    return play


def bank_positive(game: game_lib.TrialGame) -> None:
    """The bank-only player, and how others finish: banks every stone of positive value."""
    for slot in positive_stones(game):
        if not game.done:
            game.bank(slot)


def positive_stones(game: game_lib.TrialGame) -> list[int]:
    """Slots of the stones worth banking, best first."""
    slots = [i for i, s in enumerate(game.stones) if s is not None and chemistry_lib.VALUES[s] > 0]
    return sorted(slots, key=lambda slot: -chemistry_lib.VALUES[game.stones[slot]])
