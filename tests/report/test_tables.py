"""Which run stands in which row, and what its cells say."""

import importlib
import inspect
import json
import pathlib

import pytest

from rime_jax import config as config_lib
from rime_jax.report import cells, facts, runs, tables
from rime_jax.report.evaluations import Value
from tests.report.made import write_run

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"


def _eval(performance=0.5, improvement=0.1, name="step 100", **more):
    return {"final": {"policies": {name: {
        "performance": [performance, performance - 0.1, performance + 0.1],
        "improvement": [improvement, improvement - 0.1, improvement + 0.1], **more}}}}


def _tables(*paths):
    return {table.id: table for table in tables.tables(runs.read(list(paths)))}


def _rows(table):
    """(system, who) → names of our runs in it, for the rows that have any."""
    return {(row.system, row.who): [name for own in row.ours for name in own.runs]
            for row in table.rows if row.ours}


def test_cells_of_a_row_are_those_of_the_evaluation(tmp_path):
    path = write_run(tmp_path / "rime", evaluations=_eval(0.625, 0.25, gain=[0.2, 0.1, 0.3]))
    [row] = [row for row in _tables(path)["alchemy"].rows if row.ours]
    assert (row.system, row.published) == (
        "RIME, co-trained", {"performance": 0.490, "improvement": 0.213})
    [ours] = row.ours
    assert ours.values == {
        "performance": Value(0.625, 0.525, 0.725), "gain": Value(0.2, 0.1, 0.3),
        "improvement": Value(0.25, 0.15, 0.35)}
    assert ours.changed == {}


def test_seeds_become_one_experiment_with_a_standard_error(tmp_path):
    paths = [write_run(tmp_path / f"rime_{seed}", options={"seed": seed},
                       evaluations=_eval(performance))
             for seed, performance in enumerate([0.5, 0.6, 0.7])]
    [row] = [row for row in _tables(*paths)["alchemy"].rows if row.ours]
    [ours] = row.ours
    assert list(ours.runs) == ["rime_0", "rime_1", "rime_2"]
    # Deviation .1, over sqrt 3.
    value = ours.values["performance"]
    assert (value.mean, value.se, value.n) == (
        pytest.approx(0.6), pytest.approx(0.1 / 3**0.5), 3)


def test_another_option_is_another_experiment_and_is_named(tmp_path):
    paths = [write_run(tmp_path / "rime", evaluations=_eval()),
             write_run(tmp_path / "fast", options={"learner.lr": 0.5}, evaluations=_eval())]
    [row] = [row for row in _tables(*paths)["alchemy"].rows if row.ours]
    assert [dict(ours.changed) for ours in row.ours] == [{}, {"learner.lr": 0.5}]


def test_untrained_policies_that_say_the_same_are_one(tmp_path):
    paths = [write_run(tmp_path / f"r{i}", options={"reward.writer": writer},
                       evaluations=_eval(performance, name="initial"))
             for i, (writer, performance) in enumerate(
                 [("improvement", 0.3), ("none", 0.3), ("format", 0.4)])]
    row = _tables(*paths)["alchemy"].rows[0]
    assert row.system == "prompted"
    assert [list(own.runs) for own in row.ours] == [["r0", "r1"], ["r2"]]


def test_sums_of_nineteen_tasks_stand_beside_the_published_ones(tmp_path):
    n = list(range(1, 20))
    found = {"benchmark": {"protocol": "runs", "policies": {"step 191": {
        "scaffold": "act_write", "reward": {"mean": 9.5, "se": 0.4},
        "gain": {"mean": 1.25, "se": 0.6}, "stateless": {"mean": 8.25, "se": None},
        "cumulative_reward_by_position": {"mean": n, "se": n},
        "cumulative_gain_by_position": {"mean": n, "se": n}}}}}
    path = write_run(tmp_path / "rime", evaluations=found,
                     options={"env.domain": "codebase", "name": "codebase_rime"})
    tables_ = _tables(path)
    for sheet, system in (("codebase", "Qwen3.5-4B, RIME"), ("data", "6 + 6, curriculum")):
        [row] = [row for row in tables_[sheet].rows if row.ours]
        assert row.system == system
        assert row.published["reward@19"] == 10.55 and row.published["gain@19"] == 2.27
        assert row.ours[0].values["reward@19"] == Value(9.5, se=0.4)
        assert row.ours[0].values["gain@19"] == Value(1.25, se=0.6)
    assert not tables_["parameters"].has_ours


def test_a_stream_of_another_length_gets_columns_of_its_own(tmp_path):
    found = {"x": {"protocol": "runs", "policies": {"step 3": {
        "reward": {"mean": 1.0, "se": 0.1}, "gain": {"mean": 0.5, "se": 0.1},
        "cumulative_reward_by_position": {"mean": [1.0, 1.0], "se": [0, 0]}}}}}
    path = write_run(tmp_path / "r", evaluations=found, options={"env.domain": "codebase"})
    sheet = _tables(path)["codebase"]
    assert [key for key in sheet.ours_only if "@" in key] == ["reward@2", "gain@2"]
    assert sheet.ours_only["gain@2"] == "gain, 2 tasks"


def test_a_run_before_its_first_evaluation_stands_in_its_row(tmp_path):
    row = next(row for row in _tables(write_run(tmp_path / "r"))["alchemy"].rows if row.ours)
    assert row.system == "RIME, co-trained"
    assert row.ours[0].policy.name == "not evaluated yet" and not row.ours[0].values


def test_an_unknown_horizon_is_no_row_of_the_study(tmp_path):
    path = write_run(tmp_path / "r", evaluations=_eval(),
                     options={"reward.horizon": 2, "name": "horizon_2"})
    assert _rows(_tables(path)["alchemy"]) == {("horizon_2", ""): ["r"]}


def test_a_service_has_a_row_of_its_own(tmp_path):
    path = write_run(tmp_path / "r", evaluations=_eval(name="gpt-x"), options={"steps": 0})
    assert _rows(_tables(path)["alchemy"]) == {("gpt-x", ""): ["r"]}


def test_a_run_without_the_options_of_today_has_a_row(tmp_path):
    path = write_run(tmp_path / "old", evaluations=_eval())
    (path / "config.json").write_text(json.dumps({"name": "older", "seed": 1}))
    assert _rows(_tables(path)["alchemy"]) == {("older", ""): ["old"]}


def test_published_numbers_are_those_of_the_study():
    """Sums that a slip of the pen would change; the numbers stand in docs of the study."""
    rows = {(sheet["id"], row["system"], row.get("who", "")): row["published"]
            for sheet in facts.published()["tables"] for row in sheet["rows"]
            if "published" in row}
    assert len(rows) == 2 + 14 + 5 + 4
    assert sum(sum(row.values()) for row in rows.values()) == pytest.approx(
        # Alchemy; systems; training data; parameters.
        0.301 + 0.086 + 0.490 + 0.213
        + (5.13 + 7.42 + 10.14 + 10.36 + 15.20 + 17.40 + 17.25 + 6.63 + 7.45 + 0.82 + 1.33 + 3.56
           + 7.25 + 10.55) + (-1.55 - 0.33 + 0.69 + 1.49 + 4.71 + 0.90 + 2.26 + 0.73 - 0.80 - 0.02
                              + 0.48 - 0.16 + 0.60 + 2.27)
        + (2.93 - 0.29 + 3.35 - 0.09 + 3.26 + 0.58 + 8.05 + 0.69 + 10.55 + 2.27)
        + (7.29 - 0.47 + 3.68 - 0.94 + 9.88 - 0.36 + 9.29 + 0.98 + 13.50 + 0.81 + 12.35 + 1.64)
        + (8.84 + 0.72 + 8.80 + 0.02 + 10.07 + 1.07 + 10.55 + 2.27))


# Experiment → where its trained policy stands: table and row.
PLACES = {
    "alchemy": {
        "rime": ("alchemy", "RIME, co-trained"),
        "exploration_off": ("alchemy", "exploration off"),
        "writer_untrained": ("alchemy", "writer untrained, exploration on"),
        "actor_only": ("alchemy", "multi-turn RL (actor only)"),
        "writer_format": ("alchemy", "writer paid for format only, exploration on"),
        "writer_format_exploration_off": (
            "alchemy", "writer paid for format only, exploration off"),
        "cod": ("alchemy", "CoD"), "skillrise": ("alchemy", "SkillRise"),
        "single_task": ("alchemy", "single task"),
        "frozen_writer": ("alchemy", "frozen writer"), "decoupled": ("alchemy", "decoupled"),
        "co_train_continued": ("alchemy", "co-trained, continued"),
        "horizon_1": ("alchemy", "horizon K = 1"), "horizon_5": ("alchemy", "horizon K = 5"),
        "lambda_0_1": ("alchemy", "λ = 0.1"), "lambda_1": ("alchemy", "λ = 1"),
        "memory_half": ("alchemy", "memory budget halved"),
        "baseline_fitted": ("alchemy", "writer's baseline fitted"),
        "baseline_none": ("alchemy", "writer's baseline: none"),
        "benchmark_rules": ("alchemy", "benchmark rules"),
        "values_shown": ("alchemy", "values shown"),
        "unseen_graphs": ("alchemy", "unseen graphs"),
    },
    "codebase": {
        "rime": ("codebase", "Qwen3.5-4B, RIME"), "cod": ("codebase", "Qwen3.5-4B, CoD"),
        "skillrise": ("codebase", "Qwen3.5-4B, SkillRise"),
        "single_task": ("data", "single task"), "streams_3_3": ("data", "3 + 3, curriculum"),
        "shuffled": ("data", "6 + 6, shuffled"),
        "frozen_writer": ("parameters", "frozen writer"),
        "decoupled": ("parameters", "decoupled"),
        "co_train_continued": ("parameters", "co-trained, continued"),
        "exploration_off": ("codebase", "exploration off"),
        "writer_untrained": ("codebase", "writer untrained, exploration on"),
        "actor_only": ("codebase", "multi-turn RL (actor only)"),
        "writer_format": ("codebase", "writer paid for format only, exploration on"),
        "writer_format_exploration_off": (
            "codebase", "writer paid for format only, exploration off"),
        "horizon_1": ("codebase", "horizon K = 1"), "horizon_5": ("codebase", "horizon K = 5"),
        "lambda_0_1": ("codebase", "λ = 0.1"), "lambda_1": ("codebase", "λ = 1"),
        "memory_half": ("codebase", "memory budget halved"),
    },
}


def test_the_size_in_a_name_changes_nothing(tmp_path):
    path = write_run(tmp_path / "r", evaluations=_eval(),
                     options={"name": "memory_half_tiny", "rollout.memory_tokens": 11})
    assert _rows(_tables(path)["alchemy"]) == {("memory budget halved", ""): ["r"]}


def test_steps_without_learning_leave_a_policy_untrained(tmp_path):
    path = write_run(tmp_path / "r", options={"learner.lr": 0.0}, evaluations=_eval())
    assert _rows(_tables(path)["alchemy"]) == {("prompted", "untrained"): ["r"]}


def test_the_others_are_described_beside_the_run_that_differs_least(tmp_path):
    odd = {"env.stones": 3, "env.max_steps": 20, "learner.lr": 0.5}
    paths = [write_run(tmp_path / name, options=own, evaluations=_eval()) for name, own in (
        ("odd", odd), ("rime", {}), ("off", {"reward.exploration": 0.0}))]
    rows = {row.system: row.ours for row in _tables(*paths)["alchemy"].rows if row.ours}
    assert [list(own.runs) for own in rows["RIME, co-trained"]] == [["rime"], ["odd"]]
    assert dict(rows["exploration off"][0].changed) == {"reward.exploration": 0.0}
    assert dict(rows["RIME, co-trained"][1].changed) == odd


@pytest.mark.parametrize("size", ["tiny", "published"])
@pytest.mark.parametrize(("domain", "name"), [(d, n) for d, own in PLACES.items() for n in own])
def test_each_experiment_stands_in_its_row(tmp_path, domain, name, size):
    get_config = importlib.import_module(f"experiments.{domain}.{name}").get_config
    config = get_config(size) if inspect.signature(get_config).parameters else get_config()
    path = write_run(tmp_path / name, evaluations=_eval())
    (path / "config.json").write_text(config_lib.dump(config))
    found = {(table.id, row.system) for table in _tables(path).values()
             for row in table.rows if row.ours}
    # The main run of the codebase is also a row of its training data.
    also = {("data", "6 + 6, curriculum")} if (domain, name) == ("codebase", "rime") else set()
    assert found == {PLACES[domain][name], *also}


def test_every_published_experiment_has_a_place():
    known = {domain: {p.stem for p in (EXPERIMENTS / domain).glob("*.py")} for domain in PLACES}
    # `prompted` trains nothing, a branch point is seen in the runs that start from it.
    other = {"prompted", "branch_point"}
    for domain, names in known.items():
        assert names - other == PLACES[domain].keys()


@pytest.mark.parametrize(("value", "decimals", "signed", "text"), [
    (0.49, 3, False, "0.490"), (0.213, 3, True, "+0.213"), (-1.55, 2, True, "−1.55"),
    (-0.001, 2, True, "−0.00"), (None, 3, False, "")])
def test_cell(value, decimals, signed, text):
    assert cells.cell(value, decimals, signed) == text


@pytest.mark.parametrize(("value", "text"), [
    (Value(1.0, -0.5, 2.25), "[−0.50, 2.25]"), (Value(1.0, se=0.125, n=3), "± 0.12"),
    (Value(1.0), "")])
def test_spread(value, text):
    assert cells.spread(value, 2) == text
