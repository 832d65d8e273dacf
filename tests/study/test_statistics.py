"""Intervals of crossed samples, beside formulas and simulations of their own."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from rime_jax.study import statistics
from tests.study import made


def runs(values):
    """Rows whose gains are [R, C]."""
    rows = {}
    for seed, own in enumerate(np.asarray(values, float)):
        performance = [None if np.isnan(x) else x for x in own]
        rows["w0", seed] = dataclasses.replace(
            made.row(seed=seed), values={"performance": performance, "stateless": [0.0] * len(own)})
    return rows


def crossed(rng, n_runs, n_chemistries, of_run, of_chemistry, of_both):
    return (of_run * rng.standard_normal((n_runs, 1))
            + of_chemistry * rng.standard_normal((1, n_chemistries))
            + of_both * rng.standard_normal((n_runs, n_chemistries)))


def test_the_interval_over_runs_is_students_t_of_their_means():
    values = np.random.default_rng(0).standard_normal((5, 7))
    found = statistics.level(runs(values), "gain")
    low, high = stats.ttest_1samp(values.mean(1), 0).confidence_interval()
    assert found.over_runs == pytest.approx((low, high))
    assert found.mean == pytest.approx(values.mean()) and found.runs == 5


def test_a_bootstrap_over_chemistries_has_the_width_of_its_standard_error():
    values = crossed(np.random.default_rng(1), 4, 100, 1.0, 0.5, 0.1)
    low, high = statistics.level(runs(values), "gain").chemistries
    se = values.mean(0).std(ddof=1) / 10
    assert high - low == pytest.approx(2 * 1.96 * se, rel=0.06)


def test_a_crossed_bootstrap_has_the_variance_of_runs_and_chemistries_together():
    values = crossed(np.random.default_rng(2), 40, 50, 1.0, 1.0, 0.0)
    low, high = statistics.level(runs(values), "gain").both
    variance = values.mean(1).var() / 40 + values.mean(0).var() / 50
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(variance), rel=0.06)


def test_its_interval_over_runs_and_chemistries_holds_the_truth_in_most_studies(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 300)
    rng, held = np.random.default_rng(3), 0
    for _ in range(200):
        found = statistics.level(runs(crossed(rng, 6, 16, 1.0, 0.7, 0.5)), "gain")
        held += found.wide[0] <= 0 <= found.wide[1]
    assert 180 <= held


def test_a_difference_is_taken_within_pairs():
    """What seeds and chemistries do to both cells alike is not in it."""
    rng = np.random.default_rng(4)
    shared, own = 5 * rng.standard_normal((3, 6)), 0.01 * rng.standard_normal((3, 6))
    found = statistics.difference(runs(shared + 1 + own), runs(shared), "gain")
    assert found.mean == pytest.approx(1, abs=0.02) and found.runs == 3
    for low, high in (found.chemistries, found.over_runs, found.both):
        assert 0.9 < low <= found.mean <= high < 1.1


def test_runs_without_their_pair_are_left_out_and_a_warm_start_is_the_pair_of_all():
    more = made.study().select("eased", "rime")
    less = {("w0", 1): made.row(seed=1, cell="cod"), ("w1", 7): made.row(seed=7, cell="cod")}
    assert statistics.difference(more, less, "gain").runs == 1
    assert statistics.difference(more, {("w2", 0): made.row()}, "gain") is None
    warm = made.study().select("eased", "warm_start")
    assert statistics.difference(more, warm, "gain").runs == len(more) == 6


def test_one_run_has_an_interval_over_chemistries_alone():
    found = statistics.level(runs(np.random.default_rng(5).standard_normal((1, 9))), "gain")
    assert np.isnan(found.over_runs + found.both).all() and not np.isnan(found.chemistries).any()


def test_what_a_chemistry_lacks_is_left_out():
    values = np.array([[1.0, 2.0, np.nan], [3.0, 4.0, 5.0]])
    found = statistics.level(runs(values), "gain")
    assert found.mean == pytest.approx((1.5 + 4) / 2)
    assert not np.isnan(found.both).any()


def test_another_run_falls_into_its_interval_in_95_of_100_cases():
    x = np.random.default_rng(6).standard_normal((2000, 5))
    inside = [low <= new <= high for *own, new in x
              for low, high in [statistics.another(np.array(own))]]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)
