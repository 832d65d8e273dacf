"""The ideal observer: an exact Bayesian belief over chemistries, greedy for the trial in play.

The belief is exact. The choice of potions is not the full tree search of the benchmark's observer:
each step takes the potion with the best expected score if the chemistry were revealed right after
it, which needs no tree and loses little: over the first 200 evaluation episodes of the benchmark it
scores 285.9 of the oracle's 290.1 an episode. The full search scores 284.4 of 288.5 over all 1,000.
"""

import numpy as np

from rime_jax.envs.alchemy import bots, graphs, oracle
from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import game as game_lib

# Hypotheses that stand for the belief where it holds more of them.
_SAMPLES = 100
# What a nat of information about the outcome counts against a point of score: it decides between
# potions of about the same expected score.
_INFORMATION = 0.3

# [109, 8, 6] corner after a latent potion, by graph and corner; [48, 6] latent potion by colour.
_MOVES = np.array([graph.moves for graph in graphs.GRAPHS])
_LATENT = np.array(
    [
        chemistry_lib.Chemistry(*potion_map, chemistry_lib.STONE_MAPS[0], 0).latent_potions
        for potion_map in chemistry_lib.POTION_MAPS
    ]
)
# Without rotation a stone map flips bits: latent corner = seen corner ^ flip.
_FLIPS = np.arange(graphs.CORNERS)


class Belief:
    """Posterior over the chemistries without rotation, from the benchmark's prior.

    "Seen corners" are perceived coordinates as bits, bit k set where coordinate k is +1.

    Attributes:
      weights: [48 potion maps, 8 flips of the stone map, 109 graphs] probabilities.
    """

    def __init__(self):
        prior = graphs.PRIOR.astype(np.float64)
        self.weights = np.broadcast_to(prior, (len(_LATENT), len(_FLIPS), len(prior)))
        self.weights = self.weights / self.weights.sum()

    def see_stone(self, seen: int, total: int) -> None:
        """Takes in that a seen corner has this sum of latent coordinates."""
        self._keep((np.array(chemistry_lib.SUMS)[seen ^ _FLIPS] == total)[None, :, None])

    def see_effect(self, seen: int, colour: int, after: int) -> None:
        """Takes in that a potion of a colour brought a seen corner to `after`."""
        self._keep(self.outcomes(seen, colour) == after)

    def outcomes(self, seen: int, colour: int) -> np.ndarray:
        """[48, 8, 109] seen corner after the potion, by hypothesis."""
        corner = (seen ^ _FLIPS)[None, :, None]
        potion = _LATENT[:, colour][:, None, None]
        return _MOVES[np.arange(len(_MOVES)), corner, potion] ^ _FLIPS[None, :, None]

    def _keep(self, consistent: np.ndarray) -> None:
        weights = self.weights * consistent
        if not weights.any():
            raise ValueError("no chemistry without rotation agrees with what was seen")
        self.weights = weights / weights.sum()


def observer_player(rng: np.random.Generator) -> bots.Player:
    """A player for one episode without rotation and with values shown.

    Args:
      rng: draws the hypotheses that stand for a wide belief.
    """
    belief = Belief()

    def play(game: game_lib.TrialGame) -> None:
        if game.rules.values != "shown" or game.chemistry.rotation:
            raise ValueError("the ideal observer needs values='shown' and no rotation")
        for corner in game.stones:
            belief.see_stone(_seen(game, corner), chemistry_lib.SUMS[corner])
        while not game.done:
            choice = _best_potion(belief, game, rng)
            if choice is None:
                break
            _use(belief, game, *choice)
        bots.bank(game)

    return play


def _use(belief: Belief, game: game_lib.TrialGame, seen: int, colour: int) -> None:
    stone = [_seen(game, corner) for corner in game.stones].index(seen)
    potion = game.potions.index(game.chemistry.latent_potions[colour])
    event = game.use_potion(stone, potion)
    after = _seen(game, event.after)
    belief.see_effect(seen, colour, after)
    belief.see_stone(after, chemistry_lib.SUMS[event.after])


def _best_potion(
    belief: Belief, game: game_lib.TrialGame, rng: np.random.Generator
) -> tuple[int, int] | None:
    """(seen corner, colour) to use next, or None if banking now is expected to be as good."""
    flat = belief.weights.ravel()
    hypotheses = np.flatnonzero(flat)
    weights = flat[hypotheses]
    if len(hypotheses) > _SAMPLES:
        hypotheses = rng.choice(len(flat), size=_SAMPLES, p=flat)
        weights = np.full(_SAMPLES, 1 / _SAMPLES)
    now = sum(max(0, chemistry_lib.VALUES[corner]) for corner in game.stones)
    best, best_score = None, -np.inf
    for seen in {_seen(game, corner) for corner in game.stones}:
        for colour in {game.chemistry.perceived_potions[p] for p in game.potions if p is not None}:
            outcomes = belief.outcomes(seen, colour).ravel()
            chances = np.bincount(outcomes, weights=flat, minlength=graphs.CORNERS)
            if chances[seen] > 1 - 1e-12:
                continue
            scores = _revealed_scores(game, seen, colour, hypotheses, outcomes[hypotheses])
            expected = float(weights @ scores)
            positive = chances[chances > 0]
            score = expected - _INFORMATION * float(positive @ np.log(positive))
            if expected > now + 1e-9 and score > best_score:
                best, best_score = (seen, colour), score
    return best


def _revealed_scores(
    game: game_lib.TrialGame, seen: int, colour: int, hypotheses: np.ndarray, after: np.ndarray
) -> np.ndarray:
    """Best score still possible after the potion, if each of the hypotheses were known to hold."""
    others = [_seen(game, corner) for corner in game.stones]
    others.remove(seen)
    colours = [game.chemistry.perceived_potions[p] for p in game.potions if p is not None]
    colours.remove(colour)
    steps = min(game.rules.max_steps - game.steps - 1, len(colours) + len(game.stones))
    shape = (len(_LATENT), len(_FLIPS), len(_MOVES))
    scores = []
    supplies: dict[int, int] = {}
    for potion_map, flip, graph, corner in zip(
        *(a.tolist() for a in np.unravel_index(hypotheses, shape)), after.tolist(), strict=True
    ):
        if potion_map not in supplies:
            supplies[potion_map] = oracle.pack(int(_LATENT[potion_map, c]) for c in colours)
        stones = tuple(sorted(s ^ flip for s in (corner, *others)))
        scores.append(oracle.best_packed_score(graph, stones, supplies[potion_map], steps))
    return np.array(scores)


def _seen(game: game_lib.TrialGame, corner: int) -> int:
    coordinates = game.chemistry.perceived_stones[corner]
    return sum((x > 0) << k for k, x in enumerate(coordinates))
