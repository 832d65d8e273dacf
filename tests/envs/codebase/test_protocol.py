"""The benchmark's orders, rewards and gains against hand calculations."""

import dataclasses
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax.envs.codebase import protocol
from rime_jax.envs.codebase.tasks import CodeTask

TABLIB = (534, 540, 547, 579, 584, 594, 595, 596, 613)
TENACITY = (597, 603, 604, 606, 609, 610, 611, 614, 615, 628)


def task(repository, number):
    owner, name = repository.split("/")
    return CodeTask(f"{owner}__{name}-{number}", repository, repository, "", "", ("t",), (), "x")


TASKS = [*(task("jazzband/tablib", n) for n in TABLIB), *(task("jd/tenacity", n) for n in TENACITY)]


def numbers(stream):
    return [int(t.payload.rsplit("-", 1)[1]) for t in stream.tasks]


def test_five_runs_meet_all_instances_tablib_first():
    runs = protocol.orders(random.Random(3).sample(TASKS, 19))
    assert len(runs) == 5
    assert numbers(runs[0]) == [*TABLIB, *TENACITY]
    for stream in runs:
        assert sorted(numbers(stream)[:9]) == list(TABLIB)
        assert sorted(numbers(stream)[9:]) == list(TENACITY)
        assert [t.segment for t in stream.tasks] == [0] * 9 + [1] * 10
    assert len({tuple(numbers(stream)) for stream in runs}) == 5


@pytest.mark.parametrize(("run", "order"), [
    (1, [595, 613, 596, 547, 579, 540, 594, 584, 534,
         615, 603, 610, 604, 611, 606, 609, 597, 628, 614]),
    (4, [579, 596, 547, 613, 594, 584, 534, 595, 540,
         603, 609, 606, 610, 604, 611, 614, 597, 615, 628]),
])
def test_the_orders_stay_what_they_are(run, order):
    """Literal values: another generator, or one for each repository, would go unnoticed."""
    assert numbers(protocol.orders(TASKS)[run]) == order


@pytest.mark.parametrize(("tasks", "message"), [
    ([task("a/other", 3)], "the protocol is for"),
    ([dataclasses.replace(TASKS[0], instance_id="tablib"), TASKS[1]],
     "number of a pull request"),
    ([TASKS[0], TASKS[0]], "stands twice"),
])
def test_what_is_not_the_benchmark_is_refused(tasks, message):
    with pytest.raises(ValueError, match=message):
        protocol.orders(tasks)


def test_reward_and_gain_by_hand():
    """Two runs of two instances, in different orders; two samples of the baseline."""
    runs = [[("a", 0.9), ("b", 0.5)], [("b", 0.1), ("a", 0.7)]]
    found = protocol.score(runs, {"a": [0.2, 0.4], "b": [0.0, 0.2]})
    # Totals: 1.4 and 0.8; half the difference of two values is the standard error of their mean.
    assert found.reward.mean.tolist() == pytest.approx([0.5, 1.1])
    assert found.reward.se.tolist() == pytest.approx([0.4, 0.3])
    # The baseline is 0.3 and 0.1; gains are 0.6, 0.4 in the first run and 0.0, 0.4 in the second.
    assert found.gain.mean.tolist() == pytest.approx([0.3, 0.7])
    assert found.gain.se.tolist() == pytest.approx([0.3, 0.3])
    assert found.baseline == pytest.approx(0.4)
    # Each instance: variance 0.02 of two samples, so 0.01 of their mean; two instances.
    assert found.baseline_se == pytest.approx(math.sqrt(0.02))
    assert found.total_gain_se == pytest.approx(math.sqrt(0.09 + 0.02))
    assert found.reward_by_instance == pytest.approx({"a": 0.8, "b": 0.3})
    assert found.gain_by_instance == pytest.approx({"a": 0.5, "b": 0.2})


def test_one_run_and_one_sample_have_no_standard_errors():
    found = protocol.score([[("a", 1.0)]], {"a": [0.25]})
    assert (found.reward.mean[-1], found.gain.mean[-1], found.baseline) == (1.0, 0.75, 0.25)
    assert math.isnan(found.reward.se[-1]) and math.isnan(found.baseline_se)


rewards = st.floats(0, 1)


@given(st.lists(st.lists(rewards, min_size=4, max_size=4), min_size=2, max_size=5),
       st.lists(rewards, min_size=4, max_size=4), st.randoms())
def test_totals_are_sums_over_instances_whatever_the_order(values, base, rng):
    names = ["a", "b", "c", "d"]
    runs = [rng.sample(list(zip(names, run, strict=True)), 4) for run in values]
    baseline = {name: [b] for name, b in zip(names, base, strict=True)}
    found = protocol.score(runs, baseline)
    assert found.reward.mean[-1] == pytest.approx(sum(found.reward_by_instance.values()))
    assert found.gain.mean[-1] == pytest.approx(sum(found.gain_by_instance.values()))
    assert found.gain.mean[-1] == pytest.approx(found.reward.mean[-1] - sum(base))
    assert found.gain.se[-1] == pytest.approx(found.reward.se[-1])  # One baseline for all runs.


def test_a_system_that_is_its_own_baseline_gains_nothing():
    run = [("a", 0.3), ("b", 0.9)]
    found = protocol.score([run, run[::-1]], {"a": [0.3], "b": [0.9]})
    assert found.gain.mean.tolist() == [0.0, 0.0] and found.gain.se.tolist() == [0.0, 0.0]


def test_the_same_instance_late_and_early_by_hand():
    """a is met first, first, last; b second, last, second; c last, second, first."""
    runs = [[("a", 0.2), ("b", 0.5), ("c", 1.0)], [("a", 0.4), ("c", 0.6), ("b", 0.8)],
            [("c", 0.1), ("b", 0.3), ("a", 0.9)]]
    # Mean positions: 2/3, 4/3, 1; c is at its mean in the second run.
    differences = [0.9 - 0.3, 0.8 - 0.4, 1.0 - 0.1]
    mean, error = protocol.late_minus_early(runs)
    assert mean == pytest.approx(sum(differences) / 3)
    assert error == pytest.approx(statistics.stdev(differences) / math.sqrt(3))


@given(st.permutations("abcdef"), st.permutations("abcdef"), st.floats(-2, 2))
def test_late_minus_early_finds_the_trend_and_not_what_instances_are_worth(first, second, slope):
    worth = {name: i / 7 for i, name in enumerate("abcdef")}
    runs = [[(name, worth[name] + slope * t) for t, name in enumerate(order)]
            for order in (first, second)]
    moved = [abs(first.index(n) - second.index(n)) for n in "abcdef" if
             first.index(n) != second.index(n)]
    mean, _ = protocol.late_minus_early(runs)
    want = slope * sum(moved) / len(moved) if moved else math.nan
    assert mean == pytest.approx(want, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(("runs", "baseline", "message"), [
    ([], {"a": [1.0]}, "no run"),
    ([[]], {}, "no run"),
    ([[("a", 1.0)], [("b", 1.0)]], {"a": [1.0], "b": [1.0]}, "run 1 has not the instances"),
    ([[("a", 1.0), ("a", 1.0)]], {"a": [1.0]}, "once each"),
    ([[("a", math.nan)]], {"a": [1.0]}, r"run 0 has no reward for \['a'\]; play"),
    ([[("a", 1.0)]], {}, "baseline has no reward for a"),
    ([[("a", 1.0)]], {"a": []}, "baseline has no reward for a"),
    ([[("a", 1.0)]], {"a": [0.5, math.nan]}, "baseline has no reward for a"),
])
def test_incomplete_results_are_refused_and_not_counted_as_failures(runs, baseline, message):
    with pytest.raises(ValueError, match=message):
        protocol.score(runs, baseline)
