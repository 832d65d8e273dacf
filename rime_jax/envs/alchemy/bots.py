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

    def play(game: game_lib.TrialGame) -> None:
        # Where values are hidden it cannot know which stone is the best already.
        finished = chemistry_lib.BEST_CORNER if game.rules.values == "shown" else None
        while not game.done:
            stones = [i for i, s in enumerate(game.stones) if s not in (None, finished)]
            potions = [i for i, p in enumerate(game.potions) if p is not None]
            steps_left = game.rules.max_steps - game.steps
            if not stones or not potions or steps_left <= len(bankable(game)):
                break
            game.use_potion(int(rng.choice(stones)), int(rng.choice(potions)))
        bank(game)

    return play


def bank(game: game_lib.TrialGame) -> None:
    """The bank-only player, and how others finish: banks every stone that it would keep."""
    for slot in bankable(game):
        if not game.done:
            game.bank(slot)


def bankable(game: game_lib.TrialGame) -> list[int]:
    """Slots of the stones of positive value, best first; of all stones where values are hidden."""
    left = [i for i, s in enumerate(game.stones) if s is not None]
    if game.rules.values == "hidden":
        return left
    slots = [i for i in left if chemistry_lib.VALUES[game.stones[i]] > 0]
    return sorted(slots, key=lambda slot: -chemistry_lib.VALUES[game.stones[slot]])
