"""The numbers and tables of held-out streams against closed forms."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rime_jax import config as config_lib
from rime_jax.evaluation import heldout, numbers, tables
from tests.scripted import small_config

NAN = np.nan


def played(with_memory, stateless=None, facts=None, lost=0, **others):
    """What was not given was not played."""
    nothing = np.full_like(with_memory, NAN)
    names = ("true_memory", "swapped", "corrupted", "corrected", "still_false")
    return heldout.Played(
        scaffold="act_write", with_memory=with_memory,
        stateless=nothing if stateless is None else stateless,
        facts=nothing[:, :, 0] if facts is None else facts, lost=lost,
        **{name: others.get(name, nothing) for name in names})


# ---------------------------------------------------------------------- intervals


def test_the_interval_of_two_streams_is_its_closed_form():
    """Means of two draws of {0, 1}: 0, 1/2 and 1 with chances 1/4, 1/2, 1/4."""
    assert numbers.interval(np.array([0.0, 1.0]), 4000) == (0.5, 0.0, 1.0)
    assert numbers.interval(np.array([0.25, NAN]), 100) == (0.25, 0.25, 0.25)


def test_the_interval_of_many_streams_is_that_of_the_normal_law():
    values = np.random.default_rng(0).normal(3, 2, 400)
    mean, low, high = numbers.interval(values, 4000)
    half = 1.96 * values.std() / np.sqrt(400)
    assert mean == pytest.approx(values.mean())
    assert low == pytest.approx(mean - half, abs=0.05 * half + 0.01)
    assert high == pytest.approx(mean + half, abs=0.05 * half + 0.01)


def test_without_any_value_there_is_no_interval():
    assert np.isnan(numbers.interval(np.array([NAN, NAN]), 100)).all()


@given(hnp.arrays(float, st.integers(1, 12), elements=st.floats(-5, 5)), st.integers(0, 3))
def test_an_interval_holds_its_mean_and_ignores_lost_streams(values, lost):
    mean, low, high = numbers.interval(values, 200)
    assert low - 1e-9 <= mean <= high + 1e-9 or len(values) < 8
    assert values.min() - 1e-9 <= low <= high <= values.max() + 1e-9
    assert numbers.interval(np.append(values, [NAN] * lost), 200) == (mean, low, high)


def test_streams_of_one_cluster_count_as_one_observation():
    """Two clusters of equal values, however many streams they have: the closed form of two."""
    values = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    assert numbers.interval(values, 4000, clusters=list("aaabbb")) == (0.5, 0.0, 1.0)
    low, high = numbers.interval(values, 4000)[1:]
    assert 0 < low < high < 1


# ---------------------------------------------------------------------- statistics


def test_statistics_of_a_small_table():
    with_memory = np.array([[[0.0, 0.2, 0.4, 0.6], [0.4, 0.4, NAN, 0.8]],
                            [[NAN, NAN, NAN, NAN], [0.1, 0.1, 0.3, 0.5]]])
    stateless = np.array([[[0.1] * 4, [0.3] * 4], [[NAN] * 4] * 2])
    facts = np.array([[0.5, 1.0], [NAN, NAN]])
    found = numbers.statistics(played(with_memory, stateless, facts, lost=1))
    first = (0.3 + (0.4 + 0.4 + 0.8) / 3) / 2
    np.testing.assert_allclose(found["performance"], [first, 0.25])
    np.testing.assert_allclose(found["stateless"], [0.2, NAN])
    np.testing.assert_allclose(found["gain"], [first - 0.2, NAN])
    np.testing.assert_allclose(
        found["improvement"], [(0.5 + 0.8) / 2 - (0.1 + 0.4) / 2, 0.4 - 0.1])
    np.testing.assert_allclose(found["correct_facts"], [0.75, NAN])
    for name in ("true_memory", "swapped", "damage", "recovered"):
        assert np.isnan(found[name]).all()


def test_damage_is_that_of_the_tasks_behind_the_false_fact():
    with_memory = np.array([[[0.9, 0.4, 0.6]], [[0.9, 0.9, 0.5]]])
    corrupted = np.array([[[NAN, 0.1, 0.3]], [[NAN, NAN, 0.5]]])
    corrected = np.array([[[NAN, 0.0, 1.0]], [[NAN, NAN, 0.0]]])
    one = played(with_memory, corrupted=corrupted, corrected=corrected,
                 still_false=np.where(np.isnan(corrected), NAN, 1 - corrected))
    found = numbers.statistics(one)
    np.testing.assert_allclose(found["damage"], [0.5 - 0.2, 0.0])
    np.testing.assert_allclose(found["recovered"], [1.0, 0.0])
    row = numbers.results({"p": one}, {}, small_config(eval__bootstrap=100))["policies"]["p"]
    assert row["corruption"] == {
        "rollouts": 2, "corrected_after": [0.0, 1.0], "still_false_after": [1.0, 0.0],
        "recovered_by_position": pytest.approx([NAN, 1.0, 0.0], nan_ok=True)}


def test_differences_are_paired_by_stream():
    """Two policies that differ by a constant differ by it without any doubt."""
    rng = np.random.default_rng(1)
    base = rng.random((8, 2, 4))
    both = {name: played(base + shift, base, base[:, :, 0])
            for name, shift in (("initial", 0.0), ("trained", 0.25))}
    found = numbers.results(both, {}, small_config(eval__bootstrap=200))
    assert found["differences"]["trained - initial"]["gain"] == pytest.approx((0.25,) * 3)
    low, high = found["policies"]["trained"]["performance"][1:]
    assert high - low > 0.05


def test_cumulative_gain_adds_up_along_the_stream():
    """Two streams; a third one with a position that has no value is left out."""
    with_memory = np.array([[[0.1, 0.5], [0.3, 0.5]], [[0.4, 0.2], [0.4, NAN]], [[1.0, NAN]] * 2])
    stateless = np.array([[[0.1, 0.1]] * 2, [[0.0, 0.2]] * 2, [[0.0, 0.0]] * 2])
    found = numbers.cumulative_gain(played(with_memory, stateless))["cumulative_gain_by_position"]
    # Gains 0.1, 0.4 and 0.4, 0.0; sums 0.1, 0.5 and 0.4, 0.4.
    assert found["mean"] == pytest.approx([0.25, 0.45])
    assert found["se"] == pytest.approx([0.15, 0.05])
    assert numbers.cumulative_gain(played(with_memory)) == {}


# ---------------------------------------------------------------------- the table


def test_the_table_has_a_row_for_everyone_and_a_cell_for_every_column():
    base = np.random.default_rng(2).random((6, 2, 3))
    one = played(base, base, base[:, :, 0])
    floors = {"random actions": base[:, :1], "bank only": base[:, :1]}
    config = small_config(eval__bootstrap=200)
    found = numbers.results({"initial": one, "step 3": one}, floors, config)
    text = tables.table(found)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {len(tables.COLUMNS) + 2}
    for name in ("**initial**", "**step 3**", "step 3 - initial", "random actions", "bank only",
                 "oracle"):
        assert any(row.startswith(f"| {name} |") for row in rows)
    assert text.startswith(tables.setting(config)) and "eased variant" in text


def test_an_evaluation_of_which_failures_left_nothing_is_no_result():
    gone, whole = np.full((2, 2, 3), NAN), np.zeros((2, 2, 3))
    with pytest.raises(config_lib.ConfigError, match="step 3: failures ended all rollouts"):
        numbers.results({"initial": played(whole), "step 3": played(gone, lost=12)}, {},
                        small_config())


def test_lost_rollouts_are_told_under_the_table():
    base = np.random.default_rng(2).random((6, 2, 3))
    config = small_config(eval__bootstrap=100)
    whole = tables.table(numbers.results({"initial": played(base)}, {}, config))
    found = numbers.results({"initial": played(base, lost=3), "step 3": played(base)}, {}, config)
    text = tables.table(found)
    assert "left out above: initial 3." in text and "left out" not in whole


def test_interventions_get_columns_where_they_were_played():
    base = np.random.default_rng(2).random((6, 2, 3))
    found = numbers.results({"initial": played(base, base, swapped=base)}, {},
                            small_config(eval__bootstrap=100))
    assert "memory swapped" in tables.table(found) and "damage" not in tables.table(found)


def test_the_variant_is_named_and_the_benchmark_only_where_it_is_the_benchmark():
    assert "values hidden" in tables.setting(small_config())
    benchmark = dict(
        env__value_display="shown", env__stones=3, env__supply="random", env__max_steps=20,
        env__min_oracle=0, env__end_when_banked=False)
    assert "the benchmark's rules" in tables.setting(small_config(**benchmark))
    for name in benchmark:
        eased = {k: v for k, v in benchmark.items() if k != name}
        assert "eased variant" in tables.setting(small_config(**eased)), name


def test_graphs_that_training_never_saw_are_named():
    of_edges = dict(env__edges=(10, 9))
    assert tables.setting(small_config(**of_edges)).endswith("graphs of 10/9 edges")
    unseen = tables.setting(small_config(**of_edges, env__hold_out="graphs"))
    assert unseen.endswith("graphs of 10/9 edges, none of them in training")


def test_where_tasks_come_from_is_named():
    files = dict(env__episodes_file="data/e.jsonl", env__split_file="s.json")
    assert tables.setting(small_config(**files)).endswith("episodes of e.jsonl")
    assert tables.setting(small_config(eval__tasks_file="t.jsonl")).endswith("episodes of t.jsonl")
    code = dict(env__domain="codebase", rollout__env_timeout_s=600.0, env__max_steps=40)
    assert tables.setting(small_config(**code)) == (
        "Codebase Adaptation, 40 turns, 6+6, curriculum")
    assert tables.setting(small_config(
        eval__tasks_file="d/t.jsonl", eval__libraries_file="l.json", **code)) == (
        "Codebase Adaptation, 40 turns, tasks of t.jsonl")


@pytest.mark.parametrize("there, refused", [
    (None, False), ("{", False), ("[]", False), ("{}", False),
    ({"protocol": "streams", "trials": 3}, False), ({"trials": 4}, True),
    ({"protocol": "runs"}, True), ({"setting": "another"}, True),
])
def test_results_of_another_game_are_in_the_way(there, refused, tmp_path):
    if there is not None:
        text = there if isinstance(there, str) else json.dumps(there)
        (tmp_path / "a.b.json").write_text(text)
    expected = pytest.raises(config_lib.ConfigError) if refused else contextlib.nullcontext()
    with expected:
        tables.check_place(tmp_path, "a.b", small_config())


def test_results_are_saved_as_json_and_markdown(tmp_path):
    nothing_has_a_scale = np.full((2, 1, 2), NAN)
    found = numbers.results({"initial": played(nothing_has_a_scale)}, {},
                            small_config(eval__bootstrap=100))
    text = tables.save(found, tmp_path, "mine")
    saved = json.loads((tmp_path / "mine.json").read_text())
    assert saved["policies"]["initial"]["performance"] == [None] * 3
    assert (tmp_path / "mine.md").read_text() == tables.table(found) == text
