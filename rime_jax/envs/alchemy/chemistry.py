"""A chemistry: how potions and stones look, and which edges potions can follow.

Latent things are what the rules speak of (a corner 0..7, a potion 0..5, see `graphs`); perceived
things are what a player sees (coordinates of a stone, a colour index 0..5).
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from rime_jax.envs.alchemy import graphs

# By corner: the sum of the latent coordinates, and the value in the cauldron (+12 at the best).
SUMS = tuple(2 * corner.bit_count() - graphs.AXES for corner in range(graphs.CORNERS))
VALUES = tuple(total + 12 * (total == graphs.AXES) for total in SUMS)
BEST_CORNER = graphs.CORNERS - 1

Coordinates = tuple[int, int, int]

# The 48 potion maps (axis permutation, sign per latent axis) and 8 stone maps, in the benchmark's
# order; the first sign varies fastest.
SIGNS: tuple[Coordinates, ...] = tuple(
    (x, y, z) for z, y, x in itertools.product((-1, 1), repeat=graphs.AXES))
POTION_MAPS: tuple[tuple[Coordinates, Coordinates], ...] = tuple(
    ((x, y, z), dir_map)
    for x, y, z in itertools.permutations(range(graphs.AXES))
    for dir_map in SIGNS
)
STONE_MAPS = SIGNS

# Aligned from perceived coordinates: none, or -45 degrees about z, y, x with the two rotated axes
# stretched by the root of 2, which keeps the entries integers.
ROTATIONS = (
    ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    ((1, 1, 0), (-1, 1, 0), (0, 0, 1)),
    ((1, 0, -1), (0, 1, 0), (1, 0, 1)),
    ((1, 0, 0), (0, 1, 1), (0, -1, 1)),
)


@dataclasses.dataclass(frozen=True)
class Chemistry:
    """What stays fixed over an episode and has to be found out.

    Attributes:
      dim_map: dim_map[perceived potion axis] is the latent axis.
      dir_map: dir_map[latent axis] is +1 if perceived and latent direction agree, else -1.
      stone_map: stone_map[axis] is +1 if aligned and latent coordinate agree, else -1.
      graph: index in `graphs.GRAPHS`.
      rotation: index in `ROTATIONS`; 0 is none.
    """

    dim_map: Coordinates
    dir_map: Coordinates
    stone_map: Coordinates
    graph: int
    rotation: int = 0

    def __post_init__(self):
        _check((self.dim_map, self.dir_map) in POTION_MAPS, "dim_map, dir_map", self)
        _check(self.stone_map in STONE_MAPS, "stone_map", self)
        _check(0 <= self.graph < len(graphs.GRAPHS), "graph", self)
        _check(0 <= self.rotation < len(ROTATIONS), "rotation", self)

    @property
    def id(self) -> str:
        """A short unique name: graph, potion map, stone map and, where there is one, rotation."""
        potion_map = POTION_MAPS.index((self.dim_map, self.dir_map))
        name = f"g{self.graph}p{potion_map}s{STONE_MAPS.index(self.stone_map)}"
        return f"{name}r{self.rotation}" if self.rotation else name

    @property
    def n_edges(self) -> int:
        return graphs.GRAPHS[self.graph].n_edges

    def potion_effect(self, corner: int, potion: int) -> int:
        """The corner after a latent potion; the same corner where it does nothing."""
        return graphs.GRAPHS[self.graph].moves[corner][potion]

    @functools.cached_property
    def latent_potions(self) -> tuple[int, ...]:
        """[6] latent potion by perceived colour index."""
        return _latent_potions(self.dim_map, self.dir_map)

    @functools.cached_property
    def perceived_potions(self) -> tuple[int, ...]:
        """[6] perceived colour index by latent potion."""
        return tuple(self.latent_potions.index(p) for p in range(graphs.POTIONS))

    @functools.cached_property
    def perceived_stones(self) -> tuple[Coordinates, ...]:
        """[8] perceived coordinates, each -1, 0 or 1, by corner."""
        return _perceived_stones(self.stone_map, self.rotation)

    def to_json(self) -> dict[str, Any]:
        """The form of the episode files; `from_vector` reads it."""
        graph = graphs.GRAPHS[self.graph]
        return {
            "dim_map": list(self.dim_map),
            "dir_map": list(self.dir_map),
            "stone_map": list(self.stone_map),
            "constraint": [list(row) for row in graph.constraint],
            "cube_edges": graph.cube_edges,
            "n_edges": graph.n_edges,
            "rotation": self.rotation,
        }


def from_vector(chem: Mapping[str, Any]) -> Chemistry:
    """The chemistry of an episode file's `chem` object.

    Raises:
      ValueError: a field is missing, has a wrong value, or contradicts the constraint.
    """
    fields = ("dim_map", "dir_map", "stone_map", "constraint", "cube_edges", "n_edges", "rotation")
    missing = [field for field in fields if field not in chem]
    if missing:
        raise ValueError(f"chem lacks {', '.join(missing)}")
    index = graphs.graph_index(chem["constraint"])
    graph = graphs.GRAPHS[index]
    for field in ("cube_edges", "n_edges"):
        if chem[field] != getattr(graph, field):
            raise ValueError(
                f"chem.{field} is {chem[field]!r}, but its constraint has {getattr(graph, field)!r}"
            )
    dim_map, dir_map, stone_map = (tuple(chem[field]) for field in fields[:3])
    return Chemistry(dim_map, dir_map, stone_map, index, chem["rotation"])


@functools.cache
def _latent_potions(dim_map: Coordinates, dir_map: Coordinates) -> tuple[int, ...]:
    def latent(perceived_axis: int, up: int) -> int:
        axis = dim_map[perceived_axis]
        return 2 * axis + (up if dir_map[axis] == 1 else 1 - up)

    return tuple(latent(*divmod(p, 2)) for p in range(graphs.POTIONS))


@functools.cache
def _perceived_stones(stone_map: Coordinates, rotation: int) -> tuple[Coordinates, ...]:
    inverse = np.linalg.inv(np.array(ROTATIONS[rotation]))
    latent = [[2 * (c >> k & 1) - 1 for k in range(graphs.AXES)] for c in range(graphs.CORNERS)]
    aligned = np.array(latent) * np.array(stone_map)
    return tuple((int(x), int(y), int(z)) for x, y, z in np.rint(aligned @ inverse.T))


def _check(valid: bool, field: str, chemistry: Chemistry) -> None:
    if not valid:
        raise ValueError(f"{field} is not allowed in {chemistry!r}")
