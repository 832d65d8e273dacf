"""The curve of cumulative gain on held-out streams, against sums done by hand."""

import math

import numpy as np
import pytest

from rime_jax.evaluation.numbers import cumulative_gain

NAN = math.nan


def test_gain_adds_up_with_its_standard_error_over_streams():
    # [streams, rollouts, positions]; gains .5, .25 and .0, .75.
    with_memory = np.array([[[0.5, 0.5], [1.0, 0.5]], [[0.25, 1.0], [0.25, 1.0]]])
    stateless = np.array([[[0.25, 0.25], [0.25, 0.25]], [[0.25, 0.25], [0.25, 0.25]]])
    found = cumulative_gain(with_memory, stateless)
    assert found["mean"] == pytest.approx([0.25, 0.75])
    # Sums .5, 0 and .75, .75.
    assert found["se"] == pytest.approx([0.25, 0.0])


def test_a_lost_rollout_leaves_the_mean_and_a_lost_position_its_stream():
    with_memory = np.array([[[0.5, 0.5], [NAN, NAN]], [[1.0, NAN], [1.0, NAN]]])
    found = cumulative_gain(with_memory, np.zeros((2, 2, 2)))
    assert found["mean"] == pytest.approx([0.5, 1.0])
    assert np.isnan(found["se"]).all()


def test_without_any_whole_stream_there_is_no_curve():
    assert cumulative_gain(np.full((2, 1, 3), NAN), np.zeros((2, 1, 3))) == {"mean": [], "se": []}
