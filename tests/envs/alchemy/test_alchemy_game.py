"""Rules of a trial and of an episode."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import game

IDENTITY = chemistry_lib.Chemistry((0, 1, 2), (1, 1, 1), (1, 1, 1), 108)
TRIAL = game.Trial((0, 6, 7), (1, 3, 5, 0, 2, 4, 1, 1, 1, 1, 1, 1))


def new_game(**rules):
    return game.TrialGame(IDENTITY, TRIAL, game.Rules(**rules))


def test_a_potion_moves_the_stone_and_is_used_up():
    trial = new_game()
    event = trial.use_potion(0, 1)
    assert event == game.Event("potion", 0, 1, 0, 2, 0)
    assert trial.stones == [2, 6, 7]
    assert trial.potions[1] is None


def test_a_potion_without_effect_is_used_up():
    trial = new_game()
    event = trial.use_potion(2, 0)
    assert (event.kind, event.before, event.after) == ("potion", 7, 7)
    assert trial.potions[0] is None


def test_only_the_cauldron_pays_and_the_stone_is_gone():
    trial = new_game()
    assert [trial.bank(slot).reward for slot in range(3)] == [-3, 1, 15]
    assert trial.score == 13
    assert trial.stones == [None] * 3
    assert not trial.done


def test_impossible_actions_spend_a_step_and_nothing_else():
    trial = new_game()
    trial.bank(0)
    trial.use_potion(1, 2)
    before = (list(trial.stones), list(trial.potions), trial.score)
    impossible = [
        trial.bank(0),
        trial.bank(3),
        trial.use_potion(0, 0),
        trial.use_potion(1, 2),
        trial.use_potion(1, -1),
        trial.use_potion(1, 12),
        trial.end(),
    ]
    assert {event.kind for event in impossible} == {"nothing"}
    assert (trial.stones, trial.potions, trial.score) == before
    assert trial.steps == 2 + len(impossible)


def test_a_trial_ends_at_its_step_limit_or_by_the_end_action():
    trial = new_game(max_steps=2)
    trial.noop()
    assert not trial.done
    trial.noop()
    assert trial.done
    with pytest.raises(RuntimeError, match="ended"):
        trial.noop()
    ended = new_game(end_trial_action=True)
    assert ended.end().kind == "end"
    assert ended.done


def test_the_last_stone_ends_a_trial_only_where_the_rules_say_so():
    for stops in (False, True):
        trial = new_game(end_when_banked=stops)
        for slot in range(3):
            assert not trial.done
            trial.bank(slot)
        assert trial.done is stops


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stones", 0),
        ("stones", 4),
        ("potions", 13),
        ("max_steps", 0),
        ("values", "seen"),
        ("supply", "all"),
        ("min_oracle", 46),
    ],
)
def test_rules_out_of_range_name_the_field(field, value):
    with pytest.raises(ValueError, match=field):
        game.Rules(**{field: value})


def test_a_supply_of_every_colour_needs_a_multiple_of_six():
    with pytest.raises(ValueError, match="potions"):
        game.Rules(potions=8, supply="every_colour")


def test_observation_of_a_small_trial_pads_with_empty_slots():
    rules = game.Rules(stones=1, potions=2)
    env = game.SymbolicAlchemy(IDENTITY, [game.Trial((6,), (5, 0))], rules)
    vector = env.observation()
    assert vector.shape == (39,) and vector.dtype == np.float32
    np.testing.assert_allclose(vector[:5], [-1, 1, 1, 1 / 3, 0])
    np.testing.assert_allclose(vector[5:15], 2 * [2, 2, 2, 2, 1])
    np.testing.assert_allclose(vector[15:19], [2 / 3, 0, -1, 0])
    np.testing.assert_allclose(vector[19:], 1)


def test_actions_outside_the_numbering_are_refused():
    for end_trial_action, size in ((False, 40), (True, 41)):
        rules = game.Rules(end_trial_action=end_trial_action)
        env = game.SymbolicAlchemy(IDENTITY, [TRIAL], rules)
        assert env.num_actions == size
        for action in (-1, size):
            with pytest.raises(ValueError, match="outside"):
                env.step(action)
        env.step(size - 1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=80), st.integers(1, 20))
def test_rewards_of_an_episode_are_the_values_of_the_stones_that_left(actions, max_steps):
    rules = game.Rules(max_steps=max_steps, end_trial_action=True)
    env = game.SymbolicAlchemy(IDENTITY, [TRIAL] * 4, rules)
    for action in actions:
        if env.done:
            with pytest.raises(RuntimeError, match="ended"):
                env.step(action)
            break
        trial, stones = env.trial, list(env.game.stones)
        step = env.step(action)
        assert env.trial == trial + (step.boundary == 1)
        assert env.done == (step.boundary == 2)
        banked = stones[step.event.stone] if step.event.kind == "bank" else None
        assert step.reward == (0 if banked is None else chemistry_lib.VALUES[banked])
