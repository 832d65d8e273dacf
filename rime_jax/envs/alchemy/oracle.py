"""The exact best score of a trial for a player who knows the chemistry."""

import functools
from collections.abc import Iterable

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import game, graphs

# A multiset of potions is packed into one integer, a field for each latent potion. The top bit of
# every field stays free, so that one subtraction tells whether one multiset holds another.
_BITS = 5
_GUARD = sum(1 << _BITS * potion + _BITS - 1 for potion in range(graphs.POTIONS))


def best_score(chemistry: chemistry_lib.Chemistry, trial: game.Trial, rules: game.Rules) -> int:
    """The best possible score of a trial, at least 0.

    A stone that cannot reach a positive value is not banked. Potions used and stones banked must
    fit into `rules.max_steps`.
    """
    steps = min(rules.max_steps, len(trial.potions) + len(trial.stones))
    stones = tuple(sorted(trial.stones))
    return best_packed_score(chemistry.graph, stones, pack(trial.potions), steps)


def pack(potions: Iterable[int]) -> int:
    """A multiset of at most 15 latent potions as one integer; packed multisets add."""
    return sum(1 << _BITS * potion for potion in potions)


@functools.lru_cache(maxsize=1 << 16)
def best_packed_score(graph: int, stones: tuple[int, ...], supply: int, steps: int) -> int:
    """`best_score` of sorted latent stones and packed potions within so many steps.

    Dynamic programming over the stones, best value first and cut where no plan can do better.
    """
    plans = [_plans(graph, stone) for stone in stones]
    # What the stones from i on are worth if potions and steps did not matter.
    bounds = [sum(p[0][0] if p else 0 for p in plans[i:]) for i in range(len(plans) + 1)]

    def search(i: int, supply: int, steps: int, score: int, best: int) -> int:
        best = max(best, score)
        if score + bounds[i] <= best:
            return best
        for value, cost, potions in plans[i]:
            if cost <= steps and ((supply | _GUARD) - potions) & _GUARD == _GUARD:
                best = search(i + 1, supply - potions, steps - cost, score + value, best)
        return search(i + 1, supply, steps, score, best)

    return search(0, supply, steps, 0, 0)


@functools.cache
def _plans(graph: int, start: int) -> tuple[tuple[int, int, int], ...]:
    """All undominated (value, steps with banking, packed potions) of banking a stone, best first.

    A walk that returns to a corner uses more potions than the walk without the detour, so simple
    paths are enough.
    """
    moves = graphs.GRAPHS[graph].moves
    reached = []
    paths: list[tuple[tuple[int, ...], int]] = [((start,), 0)]
    while paths:
        path, potions = paths.pop()
        value = chemistry_lib.VALUES[path[-1]]
        if value > 0:
            reached.append((value, len(path), potions))
        for potion, corner in enumerate(moves[path[-1]]):
            if corner not in path:
                paths.append(((*path, corner), potions + (1 << _BITS * potion)))
    reached = sorted(set(reached), key=lambda plan: (-plan[0], plan[1]))
    kept: list[tuple[int, int, int]] = []
    for plan in reached:
        if not any(((plan[2] | _GUARD) - other[2]) & _GUARD == _GUARD for other in kept):
            kept.append(plan)
    return tuple(kept)
