"""Every curve of the first page against values written by hand."""

import math

import pytest

from rime_jax.report import figures, runs, statistics, tables
from tests.report.made import row, write_run


def _figures(*paths, late=None):
    """id → figure, of runs whose dumps are `late` (default: none)."""
    found = runs.read(list(paths))
    drawn = []
    for i, run in enumerate(found):
        rows = [own | {"step": step} for step in run.dumps for own in run.rows(step)]
        scores = {step: statistics.over_groups(
            run.rows(step), statistics.exploration_score).mean for step in run.dumps}
        drawn.append(figures.draw(i, run, statistics.by_position(rows, 1e-3), scores))
    return {figure.id: figure for figure in figures.figures(drawn, tables.tables(found))}


def _lines(panel):
    """Name → [(x, y), …] of what has an entry in the legend or could have."""
    return {trace["name"]: list(zip(trace["x"], trace["y"], strict=True))
            for trace in panel["data"] if trace.get("hoverinfo") != "skip"}


def _panel(figure, title):
    return next(panel for panel in figure.panels if panel["title"] == title)


def test_a_run_with_nothing_draws_nothing_but_its_row(tmp_path):
    assert set(_figures(write_run(tmp_path / "r"))) == {"systems-alchemy"}


def test_reward_and_gain_by_system(tmp_path):
    path = write_run(tmp_path / "r", evaluations={"final": {"policies": {"step 5": {
        "performance": [0.5, 0.25, 0.625], "improvement": 0.125}}}})
    figure = _figures(path)["systems-alchemy"]
    labels = figure.panels[0]["layout"]["yaxis"]["ticktext"]
    assert labels == ["prompted · untrained", "RIME, co-trained"]
    theirs, ours = _panel(figure, "performance")["data"]
    assert (theirs["x"], theirs["y"]) == ([0.301, 0.490], [0, 1])
    assert (ours["x"], ours["y"], ours["text"]) == ([0.5], [1], ["r"])
    assert ours["error_x"]["array"] == [0.125] and ours["error_x"]["arrayminus"] == [0.25]
    theirs, ours = _panel(figure, "improvement")["data"]
    assert (theirs["x"], ours["x"], ours["error_x"]["array"]) == ([0.086, 0.213], [0.125], [0.0])


def test_exploration_over_training_compares_the_arms_of_the_two_by_two(tmp_path):
    arms = {"rime": {}, "untrained": {"reward.writer": "none"},
            "off": {"reward.exploration": 0.0}, "cod": {"reward.credit": "cod"}}
    lines = [{"step": i, "exploration/score": i / 10} for i in (1, 2)]
    figure = _figures(*(write_run(tmp_path / name, options=options, lines=lines)
                        for name, options in arms.items()))["exploration"]
    assert _lines(figure.panels[0]) == {
        f"{arm} · {name}": [(1, 0.1), (2, 0.2)] for arm, name in (
            ("exploration on, writer trained (RIME)", "rime"),
            ("exploration on, writer untrained", "untrained"),
            ("exploration off, writer trained", "off"))}


def test_the_two_by_two_is_of_runs_that_differ_in_nothing_else(tmp_path):
    lines = [{"step": 1, "exploration/score": 0.5}]
    options = {"rime": {}, "none": {"reward.writer": "none", "reward.exploration": 0.0},
               "lambda_1": {"reward.exploration": 1.0}, "rime_seed1": {"seed": 1},
               "far": {"env.stones": 3}, "far_none": {"env.stones": 3, "reward.writer": "none"},
               "format": {"reward.writer": "format"}}
    figure = _figures(*(write_run(tmp_path / name, options=own, lines=lines)
                        for name, own in options.items()))["exploration"]
    assert [name.split(" · ")[1] for name in _lines(figure.panels[0])] == [
        "rime", "none", "rime_seed1"]


def test_each_parameter_set_has_its_own_curve(tmp_path):
    lines = [{"step": 1, "learner/actor/kl_to_initial": 0.25,
              "learner/writer/kl_to_initial": 0.5}]
    figure = _figures(write_run(tmp_path / "r", lines=lines))["health"]
    assert _lines(_panel(figure, "KL to the initial policy")) == {
        "r · actor": [(1, 0.25)], "r · writer": [(1, 0.5)]}


def test_exploration_comes_from_the_dumps_where_no_line_has_it(tmp_path):
    dumps = {1: [row(0, 0, 1, criteria=[1, 1, 0, 0]), row(0, 1, 1, criteria=None)],
             5: [row(0, 0, 1, criteria=None)], 9: [row(0, 0, 1, criteria=[2, 2, 2, 2])]}
    figure = _figures(write_run(tmp_path / "r", dumps=dumps))["exploration"]
    assert _lines(figure.panels[0]) == {"r": [(1, 0.25), (9, 1.0)]}


def test_the_final_evaluation_is_the_last_point_of_what_is_learnt(tmp_path):
    lines = [{"step": 0, "eval/gain": 0.0}, {"step": 3, "eval/gain": 0.1}, {"step": 4}]
    final = {"policies": {"initial": {"gain": 0.02}, "step 4": {"gain": [0.3, 0.2, 0.4]}}}
    figure = _figures(write_run(tmp_path / "r", lines=lines, evaluations={"final": final}))[
        "learning"]
    assert [panel["title"] for panel in figure.panels] == ["gain over the memory-blanked self"]
    assert _lines(figure.panels[0]) == {"r": [(0, 0.0), (3, 0.1), (4, 0.3)]}


def test_curves_along_the_segment(tmp_path):
    rows = [row(0, i, t, reward=r, status="solved" if r else "failed", performance=r / 4)
            for i, own in enumerate([[2, 2], [0, 2]]) for t, r in enumerate(own, 1)]
    figure = _figures(write_run(tmp_path / "r", dumps={7: rows}))["positions"]
    assert _lines(_panel(figure, "pass fraction")) == {"r": [(1, 0.5), (2, 1.0)]}
    assert _lines(_panel(figure, "groups with a gradient")) == {"r": [(1, 1.0), (2, 0.0)]}
    assert _lines(_panel(figure, "performance")) == {"r": [(1, 0.25), (2, 0.5)]}


def test_bars_of_the_pass_fraction_are_one_standard_error_over_groups(tmp_path):
    rows = [row(group, i, 1, status="solved" if i < passed else "failed")
            for group, passed in enumerate([0, 1, 2]) for i in range(2)]
    figure = _figures(write_run(tmp_path / "r", dumps={7: rows}))["positions"]
    [trace] = _panel(figure, "pass fraction")["data"]
    # 0, .5, 1: deviation .5 over sqrt 3.
    assert trace["y"] == [0.5]
    assert trace["error_y"]["array"] == [pytest.approx(0.5 / math.sqrt(3))]


def test_outcomes_of_the_groups_at_the_two_hardest_positions(tmp_path):
    passed = {1: [2, 2], 2: [0, 1], 3: [1, 1], 4: [2, 1]}  # of 2 siblings, for both groups
    rows = [row(group, i, t, status="solved" if i < own[group] else "failed")
            for t, own in passed.items() for group in range(2) for i in range(2)]
    [panel] = _figures(write_run(tmp_path / "r", dumps={7: rows}))["outcomes"].panels
    assert panel["data"][0]["y"] == ["r · position 2", "r · position 3"]
    assert {t["name"]: t["x"] for t in panel["data"]} == {
        "none passed": [0.5, 0.0], "some passed": [0.5, 1.0], "all passed": [0.0, 0.0]}


def test_cumulative_gain_has_a_band_of_one_standard_error(tmp_path):
    found = {"protocol": "runs", "policies": {"step 5": {
        "gain": {"mean": 0.5, "se": 0.2}, "reward": {"mean": 1.5, "se": 0.2},
        "cumulative_gain_by_position": {"mean": [0.25, 0.5], "se": [0.125, 0.25]}}}}
    figure = _figures(write_run(tmp_path / "r", evaluations={"bench": found}))["gain"]
    band, middle = _panel(figure, "cumulative gain, 2 tasks")["data"]
    assert (middle["x"], middle["y"]) == ([1, 2], [0.25, 0.5])
    assert list(zip(band["x"], band["y"], strict=True)) == [
        (1, 0.375), (2, 0.75), (2, 0.25), (1, 0.125)]


def test_a_curve_without_errors_has_no_band(tmp_path):
    found = {"policies": {"step 5": {"by_position": [0.25, 0.5, 0.75]}}}
    figure = _figures(write_run(tmp_path / "r", evaluations={"final": found}))["gain"]
    [trace] = _panel(figure, "held-out performance")["data"]
    assert list(zip(trace["x"], trace["y"], strict=True)) == [(1, 0.25), (2, 0.5), (3, 0.75)]


def test_a_run_has_one_line_style_in_all_figures_and_no_two_share_one(tmp_path):
    lines = [{"step": 1, "exploration/score": 0.1, "eval/gain": 0.1, "memory/tokens": 3.0}]
    found = _figures(*(write_run(tmp_path / f"r{i:02}", lines=lines) for i in range(20)))
    styles = {}
    for name in ("learning", "health"):
        for trace in found[name].panels[0]["data"]:
            styles.setdefault(trace["name"], set()).add(
                (trace["line"]["color"], trace["line"]["dash"]))
    assert all(len(own) == 1 for own in styles.values())
    assert len(set.union(*styles.values())) == 20


def test_a_figure_is_json_without_nan(tmp_path):
    rows = [row(0, 0, 1, performance=None, criteria=None), {"group": 0, "sibling": 1,
                                                            "position": 2}]
    for figure in _figures(write_run(tmp_path / "r", dumps={1: rows})).values():
        for panel in figure.panels:
            for trace in panel["data"]:
                assert not any(isinstance(y, float) and math.isnan(y) for y in trace["y"])
