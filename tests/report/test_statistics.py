"""Every number that the report computes from rollouts, against sums done by hand."""

import math

import hypothesis
import pytest
from hypothesis import strategies as st

from rime_jax.report import statistics
from tests.report.made import row


def _rows(step, group, rewards, statuses=None, **fields):
    """A group: rewards[sibling][position - 1]."""
    return [
        row(group, i, t, step=step, reward=reward, performance=reward / 10,
            status=statuses[i][t - 1] if statuses else "solved" if reward else "failed", **fields)
        for i, own in enumerate(rewards) for t, reward in enumerate(own, start=1)
    ]


# Position 1: group 0 has rewards 4, 0; group 1 has 2, 2. Position 2: 0, 0 and 6, 0.
ROWS = _rows(1, 0, [[4, 0], [0, 0]]) + _rows(1, 1, [[2, 6], [2, 0]])


def test_mean_and_standard_error_of_known_values():
    found = statistics.mean([1.0, 2.0, math.nan, 6.0])
    assert found.n == 3
    assert found.mean == pytest.approx(3.0)
    # Deviations -2, -1, 3: 14 / 2 = 7; sqrt(7 / 3).
    assert found.se == pytest.approx(math.sqrt(7 / 3))


def test_one_value_has_no_standard_error_and_none_has_no_mean():
    assert math.isnan(statistics.mean([2.0]).se)
    assert math.isnan(statistics.mean([]).mean)
    assert statistics.mean([math.nan]).n == 0


def test_position_curves():
    first, second = statistics.by_position(ROWS, std_floor=1e-3)
    assert (first.position, second.position) == (1, 2)
    # Passed: groups 1/2 and 2/2, then 0/2 and 1/2; deviation .3535, over sqrt 2.
    assert first.passed == statistics.Mean(0.75, pytest.approx(0.25), 2)
    assert second.passed == statistics.Mean(0.25, pytest.approx(0.25), 2)
    assert first.reward == statistics.Mean(2.0, pytest.approx(0.0), 2)
    assert second.reward == statistics.Mean(1.5, pytest.approx(1.5), 2)
    assert first.performance.mean == pytest.approx(0.2)
    assert (first.groups, second.groups) == (2, 2)
    assert (first.with_gradient, second.with_gradient) == (0.5, 0.5)
    assert (first.none_passed, first.mixed, first.all_passed) == (0.0, 0.5, 0.5)
    assert (second.none_passed, second.mixed, second.all_passed) == (0.5, 0.5, 0.0)


def test_the_second_segment_starts_again_at_position_one():
    rows = [row(0, i, t, step=1, segment=(t - 1) // 3, reward=float(t)) for i in range(2)
            for t in range(1, 7)]
    found = statistics.by_position(rows, std_floor=0.0)
    assert [p.position for p in found] == [1, 2, 3]
    assert [p.reward.mean for p in found] == [2.5, 3.5, 4.5]
    assert [p.groups for p in found] == [2, 2, 2]


def test_a_group_below_the_floor_has_no_gradient():
    rows = _rows(1, 0, [[1.0], [1.0 + 1e-4]])
    assert statistics.by_position(rows, std_floor=1e-3)[0].with_gradient == 0
    assert statistics.by_position(rows, std_floor=1e-5)[0].with_gradient == 1


def test_equal_rewards_have_no_gradient_even_without_a_floor():
    assert statistics.by_position(_rows(1, 0, [[1.0], [1.0]]), 0.0)[0].with_gradient == 0


def test_a_single_sibling_is_no_group_but_counts_as_passed():
    found = statistics.by_position(_rows(1, 0, [[1.0]]), std_floor=0.0)[0]
    assert found.groups == 0 and math.isnan(found.with_gradient)
    assert found.passed.mean == 1.0


def test_a_lost_task_is_no_reward_of_zero():
    lost = {"step": 1, "group": 0, "sibling": 1, "position": 1, "status": "env_crash"}
    found = statistics.by_position([*_rows(1, 0, [[1.0]]), lost], std_floor=0.0)[0]
    assert found.passed.mean == 1.0 and found.reward.mean == 1.0


def test_groups_of_two_dumps_are_two_groups():
    rows = _rows(1, 0, [[1.0], [0.0]]) + _rows(2, 0, [[0.0], [0.0]])
    found = statistics.by_position(rows, std_floor=1e-3)[0]
    assert found.groups == 2 and found.with_gradient == 0.5


def test_hardest_positions_come_in_the_order_of_the_segment():
    rows = _rows(1, 0, [[1, 0, 1, 0], [1, 0, 1, 1]])
    found = statistics.hardest(statistics.by_position(rows, 0.0))
    assert [p.position for p in found] == [2, 4]


@pytest.mark.parametrize(("criteria", "score"), [
    ([2, 2, 2, 1], 0.875), ([1, 0, 0, 1], 0.25), ([0, 0, 0, 0], 0.0)])
def test_exploration_score_is_the_sum_over_eight(criteria, score):
    assert statistics.exploration_score({"criteria": criteria}) == score


def test_no_verdict_is_no_score_and_leaves_the_mean():
    rows = [row(0, 0, 1, criteria=None), row(0, 1, 1, criteria=[2, 2, 2, 2]),
            row(1, 0, 1, criteria=[1, 1, 1, 1])]
    del rows[2]["criteria"]
    assert math.isnan(statistics.exploration_score(rows[0]))
    assert math.isnan(statistics.exploration_score(rows[2]))
    assert statistics.over_groups(rows, statistics.exploration_score).mean == 1.0


def test_improvement_is_later_half_minus_earlier_over_streams():
    # Group 0, five tasks: later half has three. (1 + 2 + 3) / 3 - (0 + 1) / 2 = 1.5, and 0.
    rows = [row(0, 0, t, performance=p) for t, p in enumerate([0, 1, 1, 2, 3], 1)]
    rows += [row(0, 1, t, performance=1.0) for t in range(1, 6)]
    # Group 1: 1 - 0.5; the task without a scale is left out.
    rows += [row(1, 0, t, performance=p) for t, p in enumerate([0.5, None, 1.0, 1.0], 1)]
    found = statistics.improvement(rows)
    assert found.mean == pytest.approx((0.75 + 0.5) / 2)
    assert found.n == 2 and found.se == pytest.approx(0.125)


@hypothesis.given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.integers(0, 7))
def test_moving_mean_keeps_length_and_bounds(values, half):
    found = statistics.moving_mean(values, 2 * half + 1)
    assert len(found) == len(values)
    assert min(values) - 1e-6 <= min(found) and max(found) <= max(values) + 1e-6


def test_moving_mean_of_width_one_changes_nothing():
    assert statistics.moving_mean([3.0, 1.0, 2.0], 1) == [3.0, 1.0, 2.0]
    assert statistics.moving_mean([3.0, 1.0, 2.0], 3) == [2.0, 2.0, 1.5]
