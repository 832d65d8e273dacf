"""The text environment and its full text form."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import env, game, text_full
from rime_jax.streams import Task

IDENTITY = chemistry_lib.Chemistry((0, 1, 2), (1, 1, 1), (1, 1, 1), 108)
TRIAL = game.Trial((0, 6, 7), (1, 3, 5, 0, 2, 4, 1, 1, 1, 1, 1, 1))
FORM = text_full.FullForm()


def opened(oracle=31, **rules):
    environment = env.AlchemyEnvironment(game.Rules(end_trial_action=True, **rules), FORM)
    task = Task("t", {"chemistry": IDENTITY, "trial": TRIAL, "oracle": oracle})
    return environment, environment.reset(task)


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Action: place stone 1 in potion 12", env.Action("potion", 0, 11)),
        ("action:\nPut the stone 2 into the cauldron.", env.Action("bank", 1)),
        ("**Action:** use stone #3 with potion #4", env.Action("potion", 2, 3)),
        ("End the trial", env.Action("end")),
        ("place stone 1 in potion 2, then place stone 3 in the cauldron", env.Action("bank", 2)),
        ("Reasoning: end the trial?\nAction: use stone 1 in potion 2", env.Action("potion", 0, 1)),
        ("Action: end trial\nAction: place stone 9 in potion 2", env.Action("potion", 8, 1)),
        ("Action: place stone 0 in the cauldron", env.Action("bank", env.MISSING)),
        ("Action: place **stone 1** in `potion 12`", env.Action("potion", 0, 11)),
        ("Put stone 2 (small blue round) into potion 3 (pink).", env.Action("potion", 1, 2)),
        ("Action: add stone 1 to the green potion 4", env.Action("potion", 0, 3)),
        ("", "empty_reply"),
        (" \n ", "empty_reply"),
        ("I will think about stone 1.", "no_action"),
        ("Reasoning: place stone 1 in potion 2\nAction: none", "no_action"),
        ("Action: place stone 1 in potion", "no_action"),
    ],
)
def test_the_last_action_of_the_action_part_counts(reply, action):
    assert FORM.parse(reply, None) == action


@pytest.mark.parametrize(("colour", "slot"), [("orange", 1), ("Red", 0), ("pink", 5)])
def test_a_potion_named_by_its_colour_is_the_first_one_left(colour, slot):
    trial = game.TrialGame(IDENTITY, TRIAL, game.Rules())
    reply = f"Action: Place stone 3 in the {colour} potion."
    assert FORM.parse(reply, trial) == env.Action("potion", 2, slot)
    trial.use_potion(0, slot)
    later = FORM.parse(reply, trial).potion
    assert later == (6 if colour == "Red" else env.MISSING)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_an_action_or_a_reason(reply):
    parsed = FORM.parse(reply, None)
    assert isinstance(parsed, env.Action) or parsed in ("empty_reply", "no_action")


@settings(deadline=None)
@given(st.sampled_from(["potion", "bank", "end"]), st.integers(0, 2), st.integers(0, 11))
def test_the_wording_that_errors_teach_is_parsed(kind, stone, potion):
    words = {
        "potion": f"place stone {stone + 1} in potion {potion + 1}",
        "bank": f"place stone {stone + 1} in the cauldron",
        "end": "end the trial",
    }
    parsed = FORM.parse(f"Observation: x\nReasoning: y\nAction: {words[kind]}", None)
    slots = {"potion": (stone, potion), "bank": (stone, None), "end": (None, None)}
    assert parsed == env.Action(kind, *slots[kind])


def test_the_opening_lists_stones_with_rewards_and_all_potions():
    _, opening = opened()
    assert "1: small blue round, reward -3" in opening
    assert "3: large purple pointy, reward +15" in opening
    assert "  1: red\n  2: orange\n  3: turquoise\n  4: green\n" in opening
    assert "Score of this trial: 0. Steps left: 20." in opening


def test_hidden_values_never_show_before_banking():
    environment, opening = opened(values="hidden")
    message = environment.step("Action: place stone 1 in potion 1").message
    for text in (opening, message):
        assert "reward" not in text
    assert "It is now large blue round." in message
    assert "in the cauldron: +15." in environment.step("place stone 3 in the cauldron").message


def test_outcomes_show_the_change_and_used_slots():
    environment, _ = opened()
    message = environment.step("place stone 1 in potion 1").message
    assert "It is now large blue round; its reward changed by +2." in message
    assert "  1: None\n  2: orange" in message
    assert "It did not change." in environment.step("place stone 1 in potion 7").message


def test_a_reply_without_action_spends_a_step_and_says_why():
    environment, _ = opened(max_steps=2)
    first, second = environment.step("hm"), environment.step("")
    assert (first.format_error, second.format_error) == ("no_action", "empty_reply")
    assert (first.done, second.done) == (False, True)
    assert environment.outcome().metrics["format_errors"] == 2


def test_an_impossible_action_spends_a_step_and_is_no_format_error():
    environment, _ = opened()
    turn = environment.step("place stone 7 in potion 1")
    assert turn.format_error is None and not turn.done
    metrics = environment.outcome().metrics
    assert (metrics["invalid_actions"], metrics["format_errors"], metrics["steps"]) == (1, 0, 1)


def test_reward_is_the_score_and_performance_the_share_of_the_oracle():
    environment, _ = opened(oracle=32)
    environment.step("place stone 2 in the cauldron")
    environment.step("place stone 3 in the cauldron")
    assert environment.step("end the trial").done
    outcome = environment.outcome()
    assert (outcome.reward, outcome.performance, outcome.solved) == (16.0, 0.5, False)
    assert "score is 16," in outcome.message
    assert outcome.metrics["banked"] == 2


@pytest.mark.parametrize(("oracle", "solved"), [(16, True), (17, False)])
def test_solved_means_the_oracle_is_reached(oracle, solved):
    environment, _ = opened(oracle=oracle)
    environment.step("place stone 2 in the cauldron")
    environment.step("place stone 3 in the cauldron")
    assert environment.outcome().solved is solved


def test_a_trial_whose_oracle_is_zero_has_no_performance():
    environment, _ = opened(oracle=0)
    outcome = environment.outcome()
    assert outcome.performance is None and not outcome.solved


def test_closing_twice_is_allowed_and_playing_on_is_not():
    environment, _ = opened()
    environment.close()
    environment.close()
    with pytest.raises(RuntimeError, match="reset"):
        environment.step("end the trial")


def test_slot_of_colour_finds_the_first_that_is_left():
    trial = game.TrialGame(IDENTITY, TRIAL, game.Rules())
    assert env.slot_of_colour(trial, 1) == 0
    trial.use_potion(0, 0)
    assert env.slot_of_colour(trial, 1) == 6
    trial.use_potion(0, 3)
    assert env.slot_of_colour(trial, 0) == env.MISSING


def test_every_rotation_has_words_and_tells_stones_apart():
    for rotation in range(4):
        chemistry = chemistry_lib.Chemistry((0, 1, 2), (1, 1, 1), (1, -1, 1), 108, rotation)
        assert len({text_full.describe_stone(chemistry, c) for c in range(8)}) == 8
