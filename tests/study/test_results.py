"""Results: runs become rows, rows outlive runs, and what is not as planned is left out by name."""

import dataclasses
import json

import pytest

from rime_jax import config as config_lib
from rime_jax.study import plan, results, steps
from tests.study import made


def test_a_file_of_results_reads_back_as_it_was(tmp_path):
    found = made.study()
    results.save(found, tmp_path / "results.json")
    assert results.load(tmp_path / "results.json") == found
    first = (tmp_path / "results.json").read_bytes()
    # Whatever the order of the rows.
    turned = results.Results(dict(reversed(found.rows.items())), found.chemistries)
    results.save(turned, tmp_path / "results.json")
    assert (tmp_path / "results.json").read_bytes() == first


def test_rows_of_runs_that_are_gone_stay_and_others_are_read_anew(tmp_path):
    recorded = made.study(cells=("rime", "cod"))
    made.write_run(tmp_path, cell="rime", seed=1)
    found, left_out = results.read(tmp_path)
    both = results.merged(recorded, found)
    assert not left_out and both.rows.keys() == recorded.rows.keys()
    key = ("eased", "w0", "rime", "", 1)
    assert both.rows[key] == found.rows[key] != recorded.rows[key]
    assert both.rows["eased", "w0", "cod", "", 1] == recorded.rows["eased", "w0", "cod", "", 1]


def test_a_row_holds_what_the_run_measured(tmp_path):
    wanted = made.write_run(tmp_path, cell="writer_untrained", seed=2)
    found, _ = results.read(tmp_path)
    row = found.rows["eased", "w0", "writer_untrained", "", 2]
    assert row.values == wanted.values and row.by_position == wanted.by_position
    assert row.options == {"reward.writer": "none"}
    assert row.training["exploration/score"] == [0.1, 0.2]
    assert row.during["eval/gain"] == [[0, 0.5], [20, 0.5]]
    assert not row.memories
    made.write_run(tmp_path, cell="rime", seed=0)
    (row,) = results.read(tmp_path)[0].select("eased", "rime").values()
    assert row.memories == {"1": ["1 3 0 1", "1 3 0 2"], "20": ["20 3 0 1", "20 3 0 2"]}
    warm = found.rows["eased", "w0", results.WARM_START, "", 0]
    assert warm.values == wanted.values and not warm.training


@pytest.mark.parametrize(("change", "told"), [
    ({"rollout.memory_tokens": 11}, "rollout.memory_tokens"),
    ({"env.stones": 3}, "env.stones"),
])
def test_a_run_with_other_options_than_the_plans_is_left_out(tmp_path, change, told):
    made.write_run(tmp_path, **change)
    found, (left_out,) = results.read(tmp_path)
    assert not found.rows and told in left_out and "rime_tiny_seed0" in left_out


def test_an_unfinished_run_is_left_out(tmp_path):
    made.write_run(tmp_path, steps=100)
    place = steps.directory(tmp_path, "eased", "w0") / "rime_tiny_seed0"
    for file in ("eval/final.json", "metrics.jsonl"):
        (place / file).unlink()
        (place / file).touch()
    found, (left_out,) = results.read(tmp_path)
    assert not found.rows and "not finished" in left_out


def test_a_cell_of_single_tasks_waits_for_its_evaluation_on_streams(tmp_path):
    made.write_run(tmp_path, cell="single_task")
    run = steps.directory(tmp_path, "eased", "w0") / "single_task_tiny_seed0"
    assert "on streams" in results.read(tmp_path)[1][0]
    own = json.loads((run / "eval" / "final.json").read_text())
    own["policies"] = {"step 100 of it": {"by_position": [0.7]}}
    own["units"]["values"] = {"step 100 of it": {"performance": [0.7] * made.CHEMISTRIES}}
    steps.streams_evaluation(run).write_text(json.dumps(own))
    found, left_out = results.read(tmp_path)
    row = found.rows["eased", "w0", "single_task", "", 0]
    # Its own evaluation is of other streams, and so is its initial one.
    assert not left_out and row.values["performance"][0] == 0.7 and len(found.rows) == 1


def test_a_pair_is_a_row_of_its_actor(tmp_path):
    made.write_run(tmp_path)
    run = steps.directory(tmp_path, "eased", "w0")
    pair = steps.swap_evaluation(run, "rime", "actor_only", 0)
    pair.parent.mkdir()
    pair.write_text((run / "rime_tiny_seed0" / "eval" / "final.json").read_text())
    found, _ = results.read(tmp_path)
    assert ("eased", "w0", "rime", "actor_only", 0) in found.rows


def test_other_chemistries_are_another_study():
    old, new = made.study(), made.study()
    new = dataclasses.replace(new, chemistries={"eased": ["other"]})
    with pytest.raises(config_lib.ConfigError, match="setting eased.*other chemistries"):
        results.merged(old, new)


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "results.json").write_text('{"rows": [{"setting": "eased"}]}')
    with pytest.raises(config_lib.ConfigError, match="cannot be read as results"):
        results.load(tmp_path / "results.json")


def test_options_are_those_that_differ_and_not_those_of_one_run():
    config = config_lib.default()
    config.seed, config.run_dir, config.model.path = 5, "elsewhere", "runs/warm/w1"
    assert results.options(config) == {}
    config.learner.kl_coef = 0.01
    config.eval.interventions = ("blanked", "swapped")
    assert results.options(config) == {
        "learner.kl_coef": 0.01, "eval.interventions": ["blanked", "swapped"]}
    assert {name: results.options(made_config(name)) for name in ("kl_0_01", "rime")} == {
        "kl_0_01": {"learner.kl_coef": 0.01}, "rime": {}}


def made_config(cell):
    from rime_jax import experiment

    return experiment.read(plan.CELLS[cell].source())
