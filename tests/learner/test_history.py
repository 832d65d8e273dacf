"""Baselines of the writer that are functions of history: what they leave as it is, and what not."""

import functools
import itertools

import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax.learner import credit as credit_lib
from rime_jax.learner import history

# A game of two tasks small enough to be played in every possible way. The first reward is luck; the
# writer writes a good memory (1) or a bad one (0); the second reward depends on both.
FIRST = 0.4
WRITES = np.array([0.3, 0.6])  # chance of a good memory, after first rewards of 0 and of 1
SECOND = np.array([[0.1, 0.5], [0.5, 0.8]])  # chance of the second reward: first, memory
STREAMS, SIBLINGS = 2, 2


@functools.cache
def all_iterations():
    """Chances [N], rewards [N, S, G, 2] and memories [N, S, G] of all iterations there are."""
    outcomes = np.array(list(itertools.product((0, 1), repeat=3)))
    first, written, second = outcomes.T

    def chance(p, happened):
        return np.where(happened, p, 1 - p)

    each = (chance(FIRST, first) * chance(WRITES[first], written)
            * chance(SECOND[first, written], second))
    players = np.array(list(itertools.product(range(8), repeat=STREAMS * SIBLINGS)))
    shape = (-1, STREAMS, SIBLINGS)
    rewards = np.stack([first, second], -1)[players].reshape(*shape, 2).astype(float)
    return each[players].prod(1), rewards, written[players].reshape(shape)


def expected_gradient(advantages):
    """Of the log-odds of a good memory after each first reward; advantages [N, S, G]."""
    chances, rewards, written = all_iterations()
    first = rewards[..., 0].astype(int)
    slope = written - WRITES[first]
    return np.array([
        (chances[:, None, None] * advantages * slope * (first == given)).sum()
        for given in (0, 1)]) / (STREAMS * SIBLINGS)


def true_gradient():
    """The derivative of the expected second reward, by hand."""
    reached = np.array([1 - FIRST, FIRST])
    return reached * WRITES * (1 - WRITES) * (SECOND[:, 1] - SECOND[:, 0])


def advantages(baseline):
    _, rewards, _ = all_iterations()
    present = np.ones((STREAMS, SIBLINGS, 2), bool)
    w = np.stack([credit_lib.improvement(r, present, 1, baseline=baseline)[..., 0]
                  for r in rewards])
    return w - w.mean(2, keepdims=True)


@pytest.mark.parametrize("baseline", ["window", "fitted", "none"])
def test_what_history_gives_leaves_the_expected_gradient(baseline):
    # The siblings' mean holds a share of one's own reward: a known factor, the same for all.
    np.testing.assert_allclose(expected_gradient(advantages(baseline)),
                               true_gradient() * (1 - 1 / SIBLINGS), atol=1e-12)


def test_coefficients_of_the_own_stream_would_change_the_expected_gradient():
    """Why they are fitted to the others: the oracle above can tell."""
    _, rewards, _ = all_iterations()
    x, y = (r - r.mean(2, keepdims=True) for r in (rewards[..., 0], rewards[..., 1]))
    power = (x**2).sum(2, keepdims=True)
    own = (x * y).sum(2, keepdims=True) / np.where(power > 0, power, 1)
    difference = expected_gradient(y - own * x) - true_gradient() * (1 - 1 / SIBLINGS)
    assert np.abs(difference).max() > 0.01


def test_the_coefficient_of_an_autoregression_is_found():
    """Rewards that remember .5 of the last deviation: what is left over is the new part alone."""
    rng = np.random.default_rng(0)
    new = rng.normal(size=(200, 8, 6))
    performance = np.zeros_like(new)
    for t in range(6):
        performance[:, :, t] = new[:, :, t] + (0.5 * performance[:, :, t - 1] if t else 0)
    present = np.ones(new.shape, bool)
    variance = {}
    for baseline in ("window", "fitted", "none"):
        w = credit_lib.improvement(performance, present, 1, baseline=baseline)[:, :, :-1]
        variance[baseline] = np.var(w - w.mean(1, keepdims=True)) * 8 / 7
    assert variance["fitted"] == pytest.approx(1.0, rel=0.05)
    assert variance["fitted"] < 0.85 * min(variance["window"], variance["none"])


def test_nothing_is_expected_of_one_stream_or_of_siblings_that_are_all_alike():
    rng = np.random.default_rng(0)
    before = np.tri(4, dtype=bool)[None]
    alone = rng.random((1, 5, 4))
    alike = np.repeat(rng.random((3, 1, 4)), 5, axis=1)
    for performance in (alone, alike):
        following = np.roll(performance, -1, -1)
        np.testing.assert_array_equal(history.expected(following, performance, before), 0.0)


def test_the_own_next_rewards_never_enter_what_is_expected():
    rng = np.random.default_rng(1)
    performance, following = rng.random((2, 3, 5, 4))
    before = np.tri(4, dtype=bool)[None]
    changed = following.copy()
    changed[1] = rng.random((5, 4))
    once, again = (history.expected(f, performance, before) for f in (following, changed))
    np.testing.assert_array_equal(once[1], again[1])
    assert np.abs(once[[0, 2]] - again[[0, 2]]).max() > 1e-6


@pytest.mark.parametrize(("changes", "remedy"), [
    ({"reward.history_baseline": "fitted", "rollout.streams_per_step": "1"}, "2 or more"),
    ({"reward.history_baseline": "none", "reward.credit": "cod"}, "leave it at 'window'"),
    ({"reward.history_baseline": "fitted", "reward.writer": "none"}, "leave it at 'window'"),
])
def test_a_baseline_of_nothing_is_refused(changes, remedy):
    config = config_lib.default()
    config_lib.override(config, changes)
    with pytest.raises(config_lib.ConfigError, match=remedy):
        config_lib.validate(config)
