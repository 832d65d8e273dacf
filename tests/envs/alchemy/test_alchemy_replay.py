"""The environment against recorded episodes and against a second implementation.

The second one is slow and written from the benchmark's definition alone: it plays with signed
coordinates and per-edge tests, shares no code with the package, and records episodes in the schema
of the recorded vectors.
"""

import copy
import itertools
import json

import numpy as np
import pytest

from rime_jax.envs.alchemy import episodes, game, levels

_FREE = [["X", "*", "*"], ["*", "X", "*"], ["*", "*", "X"]]
_FIXED = {
    "all_fixed": _FREE,
    "all_fixed_bottleneck1": [["X", "-1", "1"], *_FREE[1:]],
    "all_fixed_bottleneck2": [["X", "-1", "*"], *_FREE[1:]],
    "all_fixed_bottleneck3": [["X", "-1", "1"], _FREE[1], ["*", "-1", "X"]],
}
_ROTATIONS = [
    np.eye(3),
    np.array([[1, 1, 0], [-1, 1, 0], [0, 0, 1]]),
    np.array([[1, 0, -1], [0, 1, 0], [1, 0, 1]]),
    np.array([[1, 0, 0], [0, 1, 1], [0, -1, 1]]),
]


def corner(index):
    return [1 if index >> k & 1 else -1 for k in range(3)]


def edge(constraint, stone, axis):
    return all(c in "*X" or int(c) == x for c, x in zip(constraint[axis], stone, strict=True))


def valid_constraints():
    rows = [list(row) for row in itertools.product(["-1", "1", "*"], repeat=2)]
    for x, y, z in itertools.product(rows, repeat=3):
        constraint = [["X", *x], [y[0], "X", y[1]], [*z, "X"]]
        label = list(range(8))
        for _, i, axis in itertools.product(range(8), range(8), range(3)):
            if edge(constraint, corner(i), axis):
                j = i ^ 1 << axis
                label[i] = label[j] = min(label[i], label[j])
        if set(label) == {0}:
            yield constraint


def random_graph(rng):
    constraints = list(valid_constraints())
    marks = [sum(c.count("1") + c.count("-1") for c in constraint) for constraint in constraints]
    weights = np.array([1 / (4 * marks.count(m)) for m in marks], dtype=np.float32)
    return constraints[rng.choice(len(constraints), p=weights)]


def draw_chemistry(level, rng):
    chem = {"dim_map": [0, 1, 2], "dir_map": [1, 1, 1], "stone_map": [1, 1, 1], "rotation": 0}
    if level.startswith("perceptual_mapping_randomized"):
        dims, dirs = divmod(int(rng.randint(48)), 8)
        chem["dim_map"] = list(list(itertools.permutations(range(3)))[dims])
        chem["dir_map"] = corner(dirs)
        chem["stone_map"] = corner(int(rng.randint(8)))
    if "random_bottleneck" in level:
        chem["constraint"] = random_graph(rng)
    else:
        rng.choice(1, p=[1.0])
        chem["constraint"] = _FIXED.get(level, _FREE)
    if "rotation" in level:
        chem["rotation"] = int(rng.choice(4))
    pairs = itertools.combinations(range(8), 2)
    axes = [(i, (i ^ j).bit_length() - 1) for i, j in pairs if i ^ j in (1, 2, 4)]
    there = [edge(chem["constraint"], corner(i), axis) for i, axis in axes]
    chem["cube_edges"] = "".join(str(int(e)) for e in there)
    chem["n_edges"] = sum(there)
    return chem


class Player:
    """Signed coordinates throughout: a stone is [x, y, z], a potion (axis, direction)."""

    def __init__(self, chem, stones, potions, end_trial_action):
        self.chem = chem
        self.stones = [corner(i) for i in stones]
        self.potions = [(p // 2, 2 * (p % 2) - 1) for p in potions]
        self.special = 2 if end_trial_action else 1

    def act(self, action):
        """Reward, and whether the trial was ended."""
        if action < self.special:
            return 0, self.special == 2 and action == 0
        stone, place = divmod(action - self.special, 13)
        coordinates = self.stones[stone]
        if coordinates is None:
            return 0, False
        if place == 0:
            self.stones[stone] = None
            return sum(coordinates) + 12 * (coordinates == [1, 1, 1]), False
        if self.potions[place - 1] is not None:
            axis, direction = self.potions[place - 1]
            self.potions[place - 1] = None
            there = edge(self.chem["constraint"], coordinates, axis)
            if there and coordinates[axis] == -direction:
                coordinates[axis] = direction
        return 0, False

    def shown(self):
        inverse = np.linalg.inv(_ROTATIONS[self.chem["rotation"]])

        def seen(stone):
            aligned = np.array(stone) * self.chem["stone_map"]
            return [*np.rint(inverse @ aligned).astype(int).tolist(), sum(stone)]

        stones = [None if s is None else seen(s) for s in self.stones]
        return [stones, "".join(self._colour(p) for p in self.potions)]

    def _colour(self, potion):
        if potion is None:
            return "."
        seen = 2 * self.chem["dim_map"].index(potion[0])
        return str(seen + (potion[1] * self.chem["dir_map"][potion[0]] == 1))


def record(level, seed, num_trials, max_steps, end_trial_action):
    """An episode of random actions as a recorded vector."""
    rng, actions = np.random.RandomState(seed), np.random.default_rng(seed)
    chem = draw_chemistry(level, rng)
    trials, total = [], 0
    for t in range(num_trials):
        stones = [int(rng.randint(8)) for _ in range(3)]
        potions = [int(rng.randint(6)) for _ in range(12)]
        player = Player(chem, stones, potions, end_trial_action)
        opening = player.shown()
        steps, ended = [], False
        while not ended:
            action = int(actions.integers(39 + player.special))
            reward, ended = player.act(action)
            ended = ended or len(steps) + 1 == max_steps
            total += reward
            kind = 0 if not ended else 2 if t + 1 == num_trials else 1
            steps.append([action, reward, kind, *([] if ended else player.shown())])
        trial = {"stones": stones, "potions": potions, "S0": opening[0], "P0": opening[1]}
        trials.append({**trial, "steps": steps})
    return {
        "id": seed,
        "level": level,
        "seed": seed,
        "num_trials": num_trials,
        "max_steps": max_steps,
        "end_trial_action": end_trial_action,
        "chem": chem,
        "trials": trials,
        "total": total,
    }


@pytest.mark.parametrize("end_trial_action", [False, True])
@pytest.mark.parametrize("level", sorted(levels.LEVELS))
def test_every_level_replays_a_slow_second_implementation(level, end_trial_action):
    for seed, max_steps in ((3, 20), (4, 7)):
        vector = record(level, seed, 3, max_steps, end_trial_action)
        assert episodes.replay(json.loads(json.dumps(vector))) == []


def test_every_recorded_vector_replays(recorded):
    lines = recorded("alchemy_vectors_dev.jsonl").read_text().splitlines()
    assert [m for line in lines for m in episodes.replay(json.loads(line))] == []


def _change(vector, path, value):
    changed = copy.deepcopy(vector)
    *parents, last = path
    place = changed
    for key in parents:
        place = place[key]
    place[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("chem", "rotation"), 3, "chem"),
        (("trials", 1, "stones", 0), 9, "trial 1 stones"),
        (("trials", 1, "potions", 3), 9, "trial 1 potions"),
        (("trials", 0, "P0"), "." * 12, "trial 0 S0, P0"),
        (("trials", 0, "steps", 4, 1), 99, "trial 0 step 4"),
        (("trials", 2, "steps", 4, 2), 1, "trial 2 step 4"),
        (("trials", 0, "steps", 5, 3, 0), None, "trial 0 step 5 S, P"),
        (("total",), 999, "total"),
    ],
)
def test_replay_names_what_disagrees(path, value, named):
    level = "perceptual_mapping_randomized_with_random_bottleneck"
    vector = record(level, 6, 3, 12, False)
    stones = vector["trials"][0]["steps"][5][3]
    if path[-1] == 0 and stones[0] is None:
        value = [1, 1, 1, 3]
    mismatches = episodes.replay(_change(vector, path, value))
    assert len(mismatches) == 1
    assert mismatches[0].startswith(f"episode 6: {named} is ")


def test_an_unknown_level_lists_the_known_ones():
    with pytest.raises(ValueError, match="all_fixed_bottleneck3"):
        levels.sample_episode("bottleneck4", 0, 1, game.Rules())
    with pytest.raises(ValueError, match="min_oracle"):
        levels.sample_episode("all_fixed", 0, 1, game.Rules(min_oracle=15))
