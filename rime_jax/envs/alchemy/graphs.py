"""The 109 graphs of Symbolic Alchemy: which edges of the cube of stones a potion can follow.

Facts: Wang et al. 2021 (arXiv 2102.02926) and the released environment, whose enumeration order is
kept so that a numpy `RandomState` draws the same graph from the same seed.

A stone is a corner 0..7 of a cube; bit k of the index is latent coordinate k (0 is -1, 1 is +1).
A potion is an index 2 * axis + (direction + 1) / 2 in 0..5.
"""

import dataclasses
import itertools

import numpy as np

AXES = 3
CORNERS = 8
POTIONS = 6

# Pairs of corners that differ in one coordinate, in the order of the benchmark's edge strings.
CUBE_EDGES = tuple(
    (i, j) for i, j in itertools.combinations(range(CORNERS), 2) if (i ^ j).bit_count() == 1
)

Constraint = tuple[tuple[str, str, str], ...]


@dataclasses.dataclass(frozen=True)
class Graph:
    """One allowed graph.

    Attributes:
      constraint: for each axis, what the other two coordinates must be for its edges to exist:
        '-1', '1' or '*' for any; 'X' on the axis itself.
      cube_edges: 12 characters 0/1 over `CUBE_EDGES`.
      moves: moves[corner][potion] is the corner after the potion, the same corner if it has none.
    """

    constraint: Constraint
    cube_edges: str
    moves: tuple[tuple[int, ...], ...]

    @property
    def n_edges(self) -> int:
        """Undirected edges: 12, 10, 9, 8 or 7."""
        return self.cube_edges.count("1")

    @property
    def marks(self) -> int:
        """Coordinates that are constrained, 0 to 3."""
        return sum(mark in ("-1", "1") for row in self.constraint for mark in row)


def graph_index(constraint) -> int:
    """The index in `GRAPHS` of a 3 x 3 constraint of strings; ValueError if it is not allowed."""
    key = tuple(tuple(row) for row in constraint)
    if key not in _INDEX:
        raise ValueError(
            f"constraint {constraint!r} is none of the {len(GRAPHS)} allowed graphs; each row has "
            "'X' on its own axis and '-1', '1' or '*' elsewhere, and the graph must be connected"
        )
    return _INDEX[key]


def _edge_exists(row: tuple[str, ...], corner: int) -> bool:
    """Whether the edge along the axis of `row` is there at `corner`."""
    sign = {"1": 1, "-1": 0}
    return all(mark not in sign or corner >> k & 1 == sign[mark] for k, mark in enumerate(row))


def _moves(constraint: Constraint) -> tuple[tuple[int, ...], ...]:
    def after(corner: int, potion: int) -> int:
        axis, up = divmod(potion, 2)
        can_move = corner >> axis & 1 != up and _edge_exists(constraint[axis], corner)
        return corner ^ 1 << axis if can_move else corner

    return tuple(tuple(after(c, p) for p in range(POTIONS)) for c in range(CORNERS))


def _is_connected(moves: tuple[tuple[int, ...], ...]) -> bool:
    seen, frontier = {0}, [0]
    while frontier:
        frontier = [c for c in set(itertools.chain(*(moves[f] for f in frontier))) if c not in seen]
        seen.update(frontier)
    return len(seen) == CORNERS


def _enumerate_graphs() -> tuple[Graph, ...]:
    rows = list(itertools.product(("-1", "1", "*"), repeat=AXES - 1))
    graphs = []
    for marks in itertools.product(rows, repeat=AXES):
        (a, b), (c, d), (e, f) = marks
        constraint = ("X", a, b), (c, "X", d), (e, f, "X")
        moves = _moves(constraint)
        if _is_connected(moves):
            edges = "".join("01"[j in moves[i]] for i, j in CUBE_EDGES)
            graphs.append(Graph(constraint, edges, moves))
    return tuple(graphs)


def _prior(graphs: tuple[Graph, ...]) -> np.ndarray:
    """[109] float32: uniform over the number of marks, then uniform among those graphs."""
    marks = np.array([graph.marks for graph in graphs])
    counts = np.bincount(marks)
    return (1.0 / (np.count_nonzero(counts) * counts[marks])).astype(np.float32)


GRAPHS = _enumerate_graphs()
PRIOR = _prior(GRAPHS)
PRIOR.flags.writeable = False
_INDEX = {graph.constraint: index for index, graph in enumerate(GRAPHS)}
