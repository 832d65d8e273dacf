"""The benchmark's eight levels: episodes drawn exactly as the released environment draws them."""

import dataclasses

import numpy as np

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import game, graphs

_FREE = (("X", "*", "*"), ("*", "X", "*"), ("*", "*", "X"))


@dataclasses.dataclass(frozen=True)
class Level:
    """What a level draws at random.

    Attributes:
      random_maps: potion map and stone map; otherwise both are the identity.
      random_graph: one of the 109 graphs.
      random_rotation: one of the four rotations; otherwise none.
      constraint: the graph where it is not random.
    """

    random_maps: bool
    random_graph: bool = False
    random_rotation: bool = False
    constraint: graphs.Constraint = _FREE


_RANDOMIZED = "perceptual_mapping_randomized"
_NO_BOTTLENECK = Level(random_maps=True)

# The maps-only level goes by two names.
LEVELS = {
    f"{_RANDOMIZED}_with_random_bottleneck": Level(True, random_graph=True),
    f"{_RANDOMIZED}_with_rotation_and_random_bottleneck": Level(True, True, True),
    f"{_RANDOMIZED}_with_rotation": Level(True, random_rotation=True),
    f"{_RANDOMIZED}_with_no_bottleneck": _NO_BOTTLENECK,
    _RANDOMIZED: _NO_BOTTLENECK,
    "all_fixed": Level(False),
    "all_fixed_bottleneck1": Level(
        False, constraint=(("X", "-1", "1"), ("*", "X", "*"), ("*", "*", "X"))
    ),
    "all_fixed_bottleneck2": Level(
        False, constraint=(("X", "-1", "*"), ("*", "X", "*"), ("*", "*", "X"))
    ),
    "all_fixed_bottleneck3": Level(
        False, constraint=(("X", "-1", "1"), ("*", "X", "*"), ("*", "-1", "X"))
    ),
}


def sample_episode(
    level: str, seed: int, num_trials: int, rules: game.Rules
) -> tuple[chemistry_lib.Chemistry, tuple[game.Trial, ...]]:
    """The chemistry and trials of the first episode of a level under `RandomState(seed)`.

    Args:
      level: a name in `LEVELS`.
      seed: seed of the benchmark.
      num_trials: trials in the episode.
      rules: number of stones and potions; the supply must be random and any oracle allowed, since
        the benchmark knows nothing else.

    Raises:
      ValueError: an unknown level, or rules that the benchmark does not have.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}; there are {', '.join(sorted(LEVELS))}")
    if rules.supply != "random" or rules.min_oracle:
        raise ValueError("the benchmark's levels need Rules(supply='random', min_oracle=0)")
    rng = np.random.RandomState(seed)
    chemistry = _draw_chemistry(LEVELS[level], rng)
    return chemistry, tuple(_draw_trial(rng, rules) for _ in range(num_trials))


def _draw_chemistry(level: Level, rng: np.random.RandomState) -> chemistry_lib.Chemistry:
    potion_map, stone_map = ((0, 1, 2), (1, 1, 1)), (1, 1, 1)
    if level.random_maps:
        potion_map = chemistry_lib.POTION_MAPS[rng.randint(len(chemistry_lib.POTION_MAPS))]
        stone_map = chemistry_lib.STONE_MAPS[rng.randint(len(chemistry_lib.STONE_MAPS))]
    if level.random_graph:
        graph = int(rng.choice(len(graphs.GRAPHS), p=graphs.PRIOR))
    else:
        # A choice among one graph still takes a number from the generator.
        rng.choice(1, p=np.ones(1, np.float32))
        graph = graphs.graph_index(level.constraint)
    rotation = int(rng.choice(len(chemistry_lib.ROTATIONS))) if level.random_rotation else 0
    return chemistry_lib.Chemistry(*potion_map, stone_map, graph, rotation)


def _draw_trial(rng: np.random.RandomState, rules: game.Rules) -> game.Trial:
    stones = tuple(int(rng.randint(graphs.CORNERS)) for _ in range(rules.stones))
    potions = tuple(int(rng.randint(graphs.POTIONS)) for _ in range(rules.potions))
    return game.Trial(stones, potions)
