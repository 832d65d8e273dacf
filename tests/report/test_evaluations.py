"""Both protocols of rime_jax.evaluate, metrics.jsonl and what is none of these."""

import math

import pytest

from rime_jax.report import evaluations, runs
from rime_jax.report.evaluations import Curve, Value
from tests.report.made import write_run

STREAMS = {
    "protocol": "streams", "setting": "a game", "streams": 2, "trials": 3,
    "policies": {
        "initial": {"performance": [0.3, 0.2, 0.4], "gain": [0.0, -0.1, 0.1], "rollouts": 4,
                    "by_position": [0.3, 0.3, 0.3]},
        "step 100": {"performance": [0.5, 0.4, 0.6], "gain": [0.2, 0.1, 0.3],
                     "improvement": [0.1, None, None], "true_memory": [None, None, None],
                     "by_position": [0.4, 0.5, 0.6],
                     "cumulative_gain_by_position": {
                         "mean": [0.1, 0.3, 0.6], "se": [0.05, 0.1, 0.1]}},
    },
}
RUNS = {
    "protocol": "runs", "setting": "repairs", "runs": 5, "instances": ["a", "b"],
    "policies": {"step 100": {
        "scaffold": "act_write", "reward": {"mean": 1.5, "se": 0.1},
        "gain": {"mean": 0.5, "se": None}, "stateless": {"mean": 1.0, "se": None},
        "cumulative_reward_by_position": {"mean": [0.7, 1.5], "se": [0.1, 0.1]},
        "cumulative_gain_by_position": {"mean": [0.2, 0.5], "se": [None, None]},
        "reward_by_task": {"a": 0.7, "b": 0.8}}},
}


def _policies(path, **rest):
    [run] = runs.read([write_run(path / "rime", **rest)])
    return {(p.name, p.scaffold): p for p in evaluations.policies(run)}


def test_the_protocol_of_streams(tmp_path):
    found = _policies(tmp_path, evaluations={"final": STREAMS})
    first, trained = found["initial", "act_write"], found["step 100", "act_write"]
    assert (first.kind, trained.kind) == ("untrained", "trained")
    assert trained.values["performance"] == Value(0.5, 0.4, 0.6)
    assert trained.values["improvement"] == Value(0.1, None, None)
    assert "true_memory" not in trained.values
    assert trained.curves == {"performance": Curve([0.4, 0.5, 0.6], []),
                              "cumulative_gain": Curve([0.1, 0.3, 0.6], [0.05, 0.1, 0.1])}
    # Three positions are no [mean, low, high].
    assert "by_position" not in first.values


def test_the_protocol_of_runs_gives_sums_with_their_number_of_tasks(tmp_path):
    [policy] = _policies(tmp_path, evaluations={"benchmark": RUNS}).values()
    assert policy.values == {"reward@2": Value(1.5, se=0.1), "gain@2": Value(0.5),
                             "stateless@2": Value(1.0)}
    assert policy.curves == {"cumulative_reward@2": Curve([0.7, 1.5], [0.1, 0.1]),
                             "cumulative_gain@2": Curve([0.2, 0.5], [])}


def test_two_files_about_one_policy_are_one(tmp_path):
    found = _policies(tmp_path, evaluations={"final": STREAMS, "benchmark": RUNS})
    assert {"performance", "reward@2"} <= found["step 100", "act_write"].values.keys()


def test_the_final_evaluation_counts_before_a_later_named_one(tmp_path):
    other = {"policies": {"step 60": {"performance": 0.1}}}
    found = _policies(tmp_path, evaluations={"final": STREAMS, "step_60": other})
    assert found["step 100", "act_write"].values["performance"].mean == 0.5


def test_a_run_from_a_branch_point_was_never_untrained(tmp_path):
    """Neither before its final evaluation nor after it."""
    lines = [{"step": step, "eval/performance": 0.1} for step in (0, 5)]
    options = {"model.branch_from": "runs/branch_point/checkpoints/last"}
    ended = {"policies": {"branch point": {"performance": 0.3}, "step 5": {"performance": 0.5}}}
    for name, files in (("training", {}), ("ended", {"final": ended})):
        found = _policies(tmp_path / name, options=options, lines=lines, evaluations=files)
        assert [p.kind for p in found.values()] == ["branch point", "trained"]


def test_scaffolds_are_apart(tmp_path):
    rows = {"step 5": {"performance": 0.1, "scaffold": "in_context"},
            "step 5 again": {"performance": 0.2}}
    found = _policies(tmp_path, evaluations={"x": {"policies": rows}})
    assert found["step 5", "in_context"].values["performance"].mean == 0.1
    assert found["step 5 again", "act_write"].values["performance"].mean == 0.2


@pytest.mark.parametrize(("name", "kind"), [
    ("initial", "untrained"), ("step 0", "untrained"), ("step 7", "trained"),
    ("branch point", "branch point"), ("gpt-x", "other"), ("stepwise", "other")])
def test_kinds(tmp_path, name, kind):
    [policy] = _policies(
        tmp_path, evaluations={"x": {"policies": {name: {"performance": 0.5}}}}).values()
    assert policy.kind == kind


def test_without_files_the_lines_of_training_speak(tmp_path):
    lines = [{"step": 0, "eval/performance": 0.3, "eval/gain": 0.0},
             {"step": 20, "eval/performance": 0.4, "eval/gain": 0.1, "eval/improvement": None},
             {"step": 21}]
    found = _policies(tmp_path, lines=lines)
    assert found["initial", "act_write"].values["performance"].mean == 0.3
    trained = found["step 20", "act_write"]
    assert trained.source == "metrics.jsonl" and "improvement" not in trained.values


@pytest.mark.parametrize("found", [
    {}, {"policies": None}, {"policies": []}, {"policies": {"step 1": None}},
    {"policies": {"step 1": {"performance": [None, None, None], "by_position": [None],
                             "gain": "much", "x": True, "y": [1, 2],
                             "cumulative_gain_by_position": {}}}},
    {"protocol": "runs", "policies": {"step 1": {
        "reward": None, "cumulative_gain_by_position": 3}}},
])
def test_what_is_no_result_gives_no_value(tmp_path, found):
    for policy in _policies(tmp_path, evaluations={"final": found}).values():
        assert not policy.values and not policy.curves


def test_no_value_is_ever_nan(tmp_path):
    found = {"policies": {"step 1": {"performance": math.nan, "gain": [math.inf, 0, 0]}}}
    [policy] = _policies(tmp_path, evaluations={"final": found}).values()
    assert not policy.values
