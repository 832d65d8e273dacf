"""The returns of CoD and SkillRise against their definitions, written with plain loops."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax import config as config_lib
from rime_jax.learner import credit as credit_lib
from rime_jax.learner import returns


def reward_config(**changes):
    config = config_lib.default().reward
    config.exploration = 0.0
    for name, value in changes.items():
        config[name] = value
    return config


def page_cod(r, wf, present):
    """(ACT, WRITE) of one sibling, from lists over its positions."""
    T = len(r)
    act, write = [math.nan] * T, [math.nan] * T
    for i in range(T):
        if all(present[i:]):
            later = [x for x in r[i:] if not math.isnan(x)]
            if later:
                act[i] = sum(later) / len(later)
        later = [x for x in r[i + 1:] if not math.isnan(x)]
        if later and all(present[i:]):
            parts = [0.0 if wf[i] else -0.1, *later]
            write[i] = sum(parts) / len(parts)
    return act, write


def page_skillrise(r, present, gamma):
    T = len(r)
    out = [math.nan] * T
    for i in range(T):
        later = [(j, r[j]) for j in range(i + 1, T) if not math.isnan(r[j])]
        if later and all(present[i:]):
            out[i] = sum(gamma ** (j - i) * x for j, x in later)
    return out


@st.composite
def groups(draw, whole=False):
    S, G, T = draw(st.integers(1, 2)), draw(st.integers(2, 5)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    levels = draw(st.sampled_from([1, 2, 8]))
    performance = rng.integers(0, levels + 1, (S, G, T)) / 8
    unscaled = 0 if whole else draw(st.sampled_from([0, 0.3]))
    lost = 0 if whole else draw(st.sampled_from([0, 0.2]))
    return credit_lib.Rewards(
        reward=performance * 45,
        performance=np.where(rng.random((S, 1, T)) < unscaled, np.nan, performance),
        exploration=np.full((S, G, T), np.nan),
        well_formed=rng.random((S, G, T)) < draw(st.sampled_from([0.0, 0.6, 1.0])),
        present=rng.random((S, G, T)) >= lost,
        segments=np.zeros((S, T), int),
    )


def siblings(rewards):
    S, G, _ = rewards.performance.shape
    for s in range(S):
        for g in range(G):
            yield (s, g), rewards.performance[s, g], rewards.well_formed[s, g], \
                rewards.present[s, g]


@settings(max_examples=200, deadline=None)
@given(groups())
def test_cod_equals_its_definition(rewards):
    act, write = returns.cod(rewards.performance, rewards.well_formed, rewards.present)
    for at, r, wf, present in siblings(rewards):
        want_act, want_write = page_cod(r, wf, present)
        np.testing.assert_allclose(act[at], want_act, atol=1e-12)
        np.testing.assert_allclose(write[at], want_write, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(groups(), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_skillrise_equals_its_definition(rewards, gamma):
    got = returns.skillrise(rewards.performance, rewards.present, gamma)
    for at, r, _, present in siblings(rewards):
        np.testing.assert_allclose(got[at], page_skillrise(r, present, gamma), atol=1e-12)


def test_cod_by_hand():
    """r = .2 .4 .9; the first memory is malformed, the second is not."""
    r = np.array([[[0.2, 0.4, 0.9]]])
    act, write = returns.cod(r, np.array([[[False, True, True]]]), np.ones((1, 1, 3), bool))
    np.testing.assert_allclose(act[0, 0], [0.5, 0.65, 0.9])
    np.testing.assert_allclose(write[0, 0, :2], [(-0.1 + 0.4 + 0.9) / 3, (0 + 0.9) / 2])
    assert np.isnan(write[0, 0, 2])


def test_skillrise_by_hand():
    r = np.array([[[0.2, 0.4, 0.8]]])
    got = returns.skillrise(r, np.ones((1, 1, 3), bool), 0.5)
    np.testing.assert_allclose(got[0, 0, :2], [0.5 * 0.4 + 0.25 * 0.8, 0.5 * 0.8])
    assert np.isnan(got[0, 0, 2])


@settings(max_examples=100, deadline=None)
@given(groups(whole=True))
def test_cod_advantages_of_a_group_add_up_to_zero_and_keep_their_scale(rewards):
    config = reward_config(credit="cod")
    earned = credit_lib.credit(rewards, config)
    np.testing.assert_allclose(earned.act_advantage.sum(1), 0, atol=1e-9)
    np.testing.assert_allclose(earned.write_advantage.sum(1), 0, atol=1e-9)
    halved = credit_lib.credit(
        dataclasses.replace(rewards, performance=rewards.performance / 2), config)
    informative = (earned.act_weight > 0) & (halved.act_weight > 0)
    np.testing.assert_allclose(halved.act_advantage[informative],
                               earned.act_advantage[informative] / 2, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(groups(whole=True), st.floats(0.1, 1.0))
def test_skillrise_does_not_see_what_was_earned_before(rewards, gamma):
    """The same later tasks pay the same, whatever the task just played and those before it paid."""
    got = returns.skillrise(rewards.performance, rewards.present, gamma)
    for t in range(rewards.performance.shape[-1]):
        other = rewards.performance.copy()
        other[:, :, : t + 1] = 1 - other[:, :, : t + 1]
        np.testing.assert_array_equal(
            returns.skillrise(other, rewards.present, gamma)[:, :, t], got[:, :, t])


@settings(max_examples=100, deadline=None)
@given(groups(), st.floats(0.1, 1.0))
def test_skillrise_obeys_its_recursion(rewards, gamma):
    """R_t = gamma (r_{t+1} + R_{t+1}), with nothing after the last task."""
    got = returns.skillrise(rewards.performance, rewards.present, gamma)
    values = np.nan_to_num(rewards.performance[:, :, 1:] * 1.0)
    tail = np.nan_to_num(got[:, :, 1:])
    known = ~np.isnan(got[:, :, :-1])
    np.testing.assert_allclose(got[:, :, :-1][known], (gamma * (values + tail))[known], atol=1e-12)


@pytest.mark.parametrize("credit", ["cod", "skillrise"])
@settings(max_examples=50, deadline=None)
@given(rewards=groups(), seed=st.integers(0, 2**32 - 1))
def test_permuting_siblings_permutes_advantages(credit, rewards, seed):
    order = np.random.default_rng(seed).permutation(rewards.reward.shape[1])
    config = reward_config(credit=credit)
    names = ("reward", "performance", "exploration", "well_formed", "present")
    mixed = dataclasses.replace(rewards, **{n: getattr(rewards, n)[:, order] for n in names})
    before, after = (credit_lib.credit(r, config) for r in (rewards, mixed))
    for name in ("act_advantage", "act_weight", "write_advantage", "write_weight"):
        np.testing.assert_allclose(getattr(after, name), getattr(before, name)[:, order],
                                   atol=1e-9)


@pytest.mark.parametrize("credit", ["cod", "skillrise"])
@settings(max_examples=50, deadline=None)
@given(rewards=groups())
def test_what_has_no_value_has_no_weight_and_no_advantage(credit, rewards):
    earned = credit_lib.credit(rewards, reward_config(credit=credit))
    lost = ~rewards.present
    assert not earned.act_weight[lost].any() and not earned.write_weight[lost].any()
    assert not earned.write_weight[:, :, -1].any()
    for role in ("act", "write"):
        advantage, weight = (getattr(earned, f"{role}_{n}") for n in ("advantage", "weight"))
        assert np.isfinite(advantage).all() and not advantage[weight == 0].any()


def test_cod_has_no_use_for_a_deviation_and_skillrise_scores_the_actor_as_the_method_does():
    r = np.array([[[0.0, 1.0], [0.5, 0.0]]])
    rewards = credit_lib.Rewards(r, r, np.full(r.shape, np.nan), np.ones(r.shape, bool),
                                 np.ones(r.shape, bool), np.zeros((1, 2), int))
    cod = credit_lib.credit(rewards, reward_config(credit="cod"))
    np.testing.assert_allclose(cod.act_advantage[0], [[0.125, 0.5], [-0.125, -0.5]])
    np.testing.assert_allclose(cod.write_advantage[0, :, 0], [0.25, -0.25])
    rise = credit_lib.credit(rewards, reward_config(credit="skillrise"))
    rime = credit_lib.credit(rewards, reward_config())
    np.testing.assert_array_equal(rise.act_advantage, rime.act_advantage)
    np.testing.assert_allclose(rise.write_advantage[0, :, 0], [1, -1], atol=1e-5)


@pytest.mark.parametrize("writer", ["format", "none"])
def test_a_writer_of_the_method_beside_a_baseline_is_refused(writer):
    config = config_lib.default()
    config.reward.credit, config.reward.writer = "cod", writer
    with pytest.raises(config_lib.ConfigError, match="reward.writer.*reward.credit"):
        config_lib.validate(config)
