"""The plan of the study: its cells are experiments, its commands come in an order that works."""

import dataclasses
import itertools
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest

from rime_jax import domains, experiment
from rime_jax.study import __main__ as study
from rime_jax.study import plan, steps
from rime_jax.sweep import jobs

ROOT = pathlib.Path(__file__).parents[2]
ALL = steps.Choice(pathlib.Path("out"), list(plan.SETTINGS), list(plan.CELLS))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("setting", plan.SETTINGS.values(), ids=lambda setting: setting.name)
def test_the_cells_of_a_setting_are_different_runs_of_one_sweep(setting, tmp_path):
    cells = [plan.CELLS[name] for name in setting.cells]
    planned = jobs.plan(
        [cell.source(setting.changes) for cell in cells], setting.seeds, tmp_path)
    assert {job.name for job in planned} == {
        f"{cell.run}_seed{seed}" for cell in cells for seed in setting.seeds}
    assert all(job.same_as is None for job in planned)


def test_every_cell_is_compared_with_one_of_its_settings():
    for setting in plan.SETTINGS.values():
        assert {plan.CELLS[name].beside for name in setting.cells} <= set(setting.cells)
        assert set(setting.swaps) <= set(setting.cells)
        for cell in setting.cells:
            # The games of all settings are those that the warm start can play.
            experiment.read(plan.CELLS[cell].source(setting.changes))
    assert {name for o in plan.ORDERINGS for name in (o.more, o.less)} <= {
        *plan.CELLS, "warm_start"}


def test_the_study_is_as_wide_as_a_reviewer_asks():
    eased = plan.SETTINGS["eased"]
    assert len(eased.warm_starts) >= 2 and len(eased.seeds) >= 3
    for setting in plan.SETTINGS.values():
        assert set(plan.MAIN) <= set(setting.cells)
        config = experiment.read(plan.CELLS["rime"].source(setting.changes))
        assert config.eval.streams >= 64 and config.eval.rollouts >= 4


def test_a_run_meets_all_tiers_of_its_game_in_the_order_of_its_cell():
    setting = plan.SETTINGS["unseen_graphs"]
    for cell, in_order in (("rime", True), ("shuffled", False)):
        config = experiment.read(plan.CELLS[cell].source(setting.changes), ["env.trials=1"])
        streams = config.steps * config.rollout.streams_per_step
        make = domains.make(config).make_stream("train")
        dealt = [make(i, np.random.default_rng(i)).info["edges"] for i in range(0, streams, 20)]
        assert set(dealt) == {10, 9, 8}
        assert (dealt == sorted(dealt, reverse=True)) == in_order


def test_a_cell_has_its_own_changes_also_where_the_setting_has_others():
    setting = plan.SETTINGS["unseen_graphs"]
    config = experiment.read(plan.CELLS["shuffled"].source(setting.changes))
    assert config.env.order == "shuffled" and tuple(config.env.edges) == (10, 9, 8)
    assert config.name == "shuffled_tiny"


def test_a_warm_start_is_made_before_its_runs_and_a_run_before_its_evaluations():
    there = set()
    for step in steps.all_of(ALL):
        words = step.command
        read = [word.partition("=")[2] for word in words
                if word.startswith(
                    ("model.path=", "warm_start.initial=", "--actor=", "--writer="))]
        assert set(read) <= {*there, plan.SHIPPED_WARM_START}, step.title
        if "rime_jax.sweep" in words:
            sources = itertools.takewhile(lambda word: word != "--seeds", words[2:])
            seeds = words[words.index("--seeds") + 1].split(",")
            place = words[words.index("--out") + 1]
            names = [experiment.read(source).name for source in sources]
            there |= {f"{place}/{name}_seed{seed}" for name in names for seed in seeds}
        else:
            there.add(str(step.makes if "rime_jax.evaluate" in words else step.makes.parent))


def test_a_setting_alone_brings_the_warm_starts_that_its_own_go_on_from():
    alone = dataclasses.replace(ALL, settings=["unseen_graphs"], cells=["rime"])
    made = [step.title for step in steps.all_of(alone) if step.title.startswith("warm start")]
    assert made == ["warm start bn0", "warm start w1", "warm start bn1"]


def test_warm_starts_go_on_from_some_that_are_independent():
    assert len(plan.MADE_FOR) == sum(len(s.warm_starts) for s in plan.SETTINGS.values())
    for setting in plan.SETTINGS.values():
        earlier = setting.goes_on_from.values()
        assert len(set(earlier)) == len(earlier) and set(earlier) <= set(plan.MADE_FOR)


def test_quick_is_one_run_of_each_main_cell(capsys):
    study.main(["--quick", "--dry-run"])
    said = capsys.readouterr().out
    (sweep,) = [line for line in said.splitlines() if "rime_jax.sweep" in line]
    assert sweep.count(":tiny") == len(plan.MAIN) and " --seeds 0 " in sweep
    assert "warm_start" not in said


def test_what_is_made_is_skipped_and_what_fails_ends_the_study(tmp_path, monkeypatch, capsys):
    made = tmp_path / "made"
    made.touch()
    ends = [steps.Step("is there", ("-c", "raise SystemExit(1)"), made),
            steps.Step("fails", ("-c", "raise SystemExit(75)")),
            steps.Step("never", ("-c", f"open({str(tmp_path / 'never')!r}, 'w')"))]
    monkeypatch.setattr(steps, "all_of", lambda choice: ends)
    with pytest.raises(SystemExit) as ended:
        study.main([])
    assert ended.value.code == 75 and not (tmp_path / "never").exists()
    assert "Stopped at: fails" in capsys.readouterr().err


def test_a_signal_reaches_the_running_command_and_its_status_is_that_of_the_study(
        tmp_path, monkeypatch):
    up = tmp_path / "up"
    program = ("import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); "
               f"open({str(up)!r}, 'w'); time.sleep(60)")
    monkeypatch.setattr(steps, "all_of", lambda choice: [steps.Step("waits", ("-c", program))])

    def interrupt():
        while not up.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended:
        study.main([])
    assert ended.value.code == 75 and signal.getsignal(signal.SIGINT) is before


def test_an_unknown_name_is_answered_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        study.main(["--settings", "easy"])
    assert "there is no easy; there are eased" in capsys.readouterr().err
