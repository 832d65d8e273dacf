"""Graphs and chemistries against their published counts and definitions."""

import collections
import itertools

import numpy as np
import pytest

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import graphs

ALL = tuple(
    chemistry_lib.Chemistry(*maps, stone_map, 0, rotation)
    for maps in chemistry_lib.POTION_MAPS
    for stone_map in chemistry_lib.STONE_MAPS
    for rotation in range(4)
)


def test_graphs_have_the_published_counts_by_marks_and_edges():
    assert len(graphs.GRAPHS) == len({g.cube_edges for g in graphs.GRAPHS}) == 109
    counts = collections.Counter((g.marks, g.n_edges) for g in graphs.GRAPHS)
    assert counts == {(0, 12): 1, (1, 10): 12, (2, 9): 12, (2, 8): 36, (3, 7): 48}


def test_prior_is_uniform_over_marks():
    assert graphs.PRIOR.dtype == np.float32
    mass = collections.Counter()
    for graph, p in zip(graphs.GRAPHS, graphs.PRIOR, strict=True):
        mass[graph.n_edges] += float(p)
    expected = {12: 0.25, 10: 0.25, 9: 0.0625, 8: 0.1875, 7: 0.25}
    assert mass == pytest.approx(expected, abs=1e-6)


def test_moves_follow_the_edges_and_opposite_potions_undo_each_other():
    for graph in graphs.GRAPHS:
        there = zip(graphs.CUBE_EDGES, graph.cube_edges, strict=True)
        edges = {edge for edge, bit in there if bit == "1"}
        for corner, potion in itertools.product(range(8), range(6)):
            after = graph.moves[corner][potion]
            axis, up = divmod(potion, 2)
            target = corner | 1 << axis if up else corner & ~(1 << axis)
            exists = (min(corner, target), max(corner, target)) in edges
            assert after == (target if exists else corner)
            if after != corner:
                assert graph.moves[after][potion ^ 1] == corner


def test_values_are_coordinate_sums_with_a_bonus_for_the_best():
    assert collections.Counter(chemistry_lib.VALUES) == {-3: 1, -1: 3, 1: 3, 15: 1}
    assert chemistry_lib.SUMS[chemistry_lib.BEST_CORNER] == 3


def test_potion_maps_follow_their_definition():
    for chemistry in ALL[::4]:
        for axis, direction in itertools.product(range(3), (-1, 1)):
            latent_axis = chemistry.dim_map[axis]
            latent_direction = chemistry.dir_map[latent_axis] * direction
            latent = chemistry.latent_potions[2 * axis + (direction + 1) // 2]
            assert latent == 2 * latent_axis + (latent_direction + 1) // 2
            assert chemistry.perceived_potions[latent] == 2 * axis + (direction + 1) // 2


def test_perceived_stones_rotate_back_to_the_signed_latent_corner():
    for chemistry in ALL[:32]:
        assert len(set(chemistry.perceived_stones)) == 8
        for corner, seen in enumerate(chemistry.perceived_stones):
            assert set(seen) <= {-1, 0, 1}
            aligned = np.array(chemistry_lib.ROTATIONS[chemistry.rotation]) @ np.array(seen)
            latent = aligned * np.array(chemistry.stone_map)
            assert [int(x > 0) for x in latent] == [corner >> k & 1 for k in range(3)]


def test_ids_tell_chemistries_apart():
    assert len({chemistry.id for chemistry in ALL}) == len(ALL)


def test_json_round_trip():
    for graph in range(109):
        chemistry = chemistry_lib.Chemistry((2, 0, 1), (1, -1, 1), (-1, 1, 1), graph, graph % 4)
        assert chemistry_lib.from_vector(chemistry.to_json()) == chemistry


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dim_map", [0, 0, 1]),
        ("dir_map", [0, 1, 1]),
        ("stone_map", [1, 1]),
        ("rotation", 4),
        ("n_edges", 7),
        ("cube_edges", "1" * 11 + "0"),
        ("constraint", [["X", "1", "1"], ["1", "X", "1"], ["1", "1", "X"]]),
    ],
)
def test_a_contradictory_field_is_named(field, value):
    good = chemistry_lib.Chemistry((0, 1, 2), (1, 1, 1), (1, 1, 1), 108).to_json()
    chemistry_lib.from_vector(good)
    with pytest.raises(ValueError, match=field):
        chemistry_lib.from_vector({**good, field: value})
    with pytest.raises(ValueError, match=field):
        chemistry_lib.from_vector({k: v for k, v in good.items() if k != field})
