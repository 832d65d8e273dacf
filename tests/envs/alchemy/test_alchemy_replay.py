"""The environment against recorded episodes and against a second implementation."""

import copy
import json

import pytest
import slow_alchemy

from rime_jax.envs.alchemy import episodes, game, levels


@pytest.mark.parametrize("end_trial_action", [False, True])
@pytest.mark.parametrize("level", sorted(levels.LEVELS))
def test_every_level_replays_a_slow_second_implementation(level, end_trial_action):
    for seed, max_steps in ((3, 20), (4, 7)):
        vector = slow_alchemy.record(level, seed, 3, max_steps, end_trial_action)
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
    vector = slow_alchemy.record(level, 6, 3, 12, False)
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
