"""Credit against a page of formulas written with plain loops."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax import config as config_lib
from rime_jax.learner import credit as credit_lib


def reward_config(**changes):
    config = config_lib.default().reward
    for name, value in changes.items():
        config[name] = value
    return config


# --- the page of formulas -------------------------------------------------------------------------


def page_mean(values):
    values = [v for v in values if not math.isnan(v)]
    return sum(values) / len(values) if values else math.nan


def page_window(r, s, t, c, first, last):
    """Positions of a window around t, counted from 1."""
    inside = range(max(1, first), min(last, r.reward.shape[2]) + 1)
    if c.horizon_stays_in_segment:
        return [j for j in inside if r.segments[s, j - 1] == r.segments[s, t - 1]]
    return list(inside)


def page_following(r, s, g, t, c):
    after = page_window(r, s, t, c, t + 1, t + c.horizon)
    if not all(r.present[s, g, j - 1] for j in [t, *after]):
        return math.nan
    return page_mean([r.performance[s, g, j - 1] for j in after])


def page_regression(r, s, c):
    """Of one stream: {(t, g): (past rewards, next window), both less the siblings' mean}."""
    rows = {}
    for t in range(1, r.reward.shape[2] + 1):
        following = {g: page_following(r, s, g, t, c) for g in range(r.reward.shape[1])}
        following = {g: v for g, v in following.items() if not math.isnan(v)}
        past = {g: [] for g in following}
        for j in range(t, t - c.horizon, -1):
            reached = j in page_window(r, s, t, c, t - c.horizon + 1, t)
            known = {g: r.performance[s, g, j - 1] for g in following
                     if reached and r.present[s, g, j - 1]
                     and not math.isnan(r.performance[s, g, j - 1])}
            for g in following:
                past[g].append(known[g] - page_mean(known.values()) if g in known else 0.0)
        mean = page_mean(following.values())
        rows |= {(t, g): (past[g], following[g] - mean) for g in following}
    return rows


def page_expected(r, s, g, t, c):
    fitted = [row for other in range(r.reward.shape[0]) if other != s
              for row in page_regression(r, other, c).values()]
    if not fitted:
        return 0.0
    past, following = (np.array(column) for column in zip(*fitted, strict=True))
    coefficients = np.linalg.lstsq(past, following, rcond=1e-6)[0]
    return float(np.dot(page_regression(r, s, c)[t, g][0], coefficients))


def page_improvement(r, s, g, t, c):
    following = page_following(r, s, g, t, c)
    if math.isnan(following) or c.history_baseline == "none":
        return following
    if c.history_baseline == "fitted":
        return following - page_expected(r, s, g, t, c)
    before = page_window(r, s, t, c, t - c.horizon + 1, t)
    if not all(r.present[s, g, j - 1] for j in before):
        return math.nan
    return following - page_mean([r.performance[s, g, j - 1] for j in before])


def page_writer(r, s, g, t, c):
    G, T = r.reward.shape[1:]
    if c.writer == "none" or t == T or not r.present[s, g, t - 1]:
        return math.nan
    if c.writer == "format":
        return 1 + c.format_bonus if r.well_formed[s, g, t - 1] else 0.0
    w = page_improvement(r, s, g, t, c)
    if math.isnan(w):
        return math.nan
    if r.well_formed[s, g, t - 1]:
        return w + c.format_bonus
    if c.malformed == "zero":
        return 0.0
    good = [page_improvement(r, s, h, t, c) + c.format_bonus
            for h in range(G) if r.well_formed[s, h, t - 1]]
    good = [v for v in good if not math.isnan(v)]
    return min(good) if good else 0.0


def page_z(values, c):
    """z of each sibling, and whether the group says anything."""
    valid = [v for v in values if not math.isnan(v)]
    if len(valid) < 2:
        return [0.0] * len(values), False
    mean = sum(valid) / len(valid)
    std = math.sqrt(sum((v - mean) ** 2 for v in valid) / len(valid))
    if std < c.std_floor:
        return [0.0] * len(values), False
    return [0.0 if math.isnan(v) else (v - mean) / (std + c.eps) for v in values], True


def page_credit(r, c):
    S, G, T = r.reward.shape
    out = {n: np.zeros((S, G, T)) for n in ("act", "act_weight", "write", "write_weight")}
    for s in range(S):
        for t in range(1, T + 1):
            here = lambda x, s=s, t=t: [  # noqa: E731
                x[s, g, t - 1] if r.present[s, g, t - 1] else math.nan for g in range(G)]
            rewards, scores = here(r.reward), here(r.exploration)
            written = [page_writer(r, s, g, t, c) for g in range(G)]
            (zr, ir), (ze, ie) = page_z(rewards, c), page_z(scores, c)
            zw, iw = page_z(written, c)
            for g in range(G):
                out["act"][s, g, t - 1] = zr[g] + c.exploration * ze[g]
                explored = c.exploration > 0 and ie and not math.isnan(scores[g])
                out["act_weight"][s, g, t - 1] = (ir and r.present[s, g, t - 1]) or explored
                out["write"][s, g, t - 1] = zw[g]
                out["write_weight"][s, g, t - 1] = iw and not math.isnan(written[g])
    return out


# --- random groups --------------------------------------------------------------------------------


@st.composite
def groups(draw, min_positions=1):
    S, G = draw(st.integers(1, 3)), draw(st.integers(2, 5))
    T = draw(st.integers(min_positions, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Few levels make zero-variance groups; eighths make float sums exact.
    levels = draw(st.sampled_from([1, 2, 8]))

    def values():
        return rng.integers(0, levels + 1, (S, G, T)) / 8

    return credit_lib.Rewards(
        reward=values() * 45,
        performance=np.where(rng.random((S, 1, T)) < draw(st.sampled_from([0, 0.3])), np.nan,
                             values()),
        exploration=np.where(rng.random((S, G, T)) < draw(st.sampled_from([0, 0.4])), np.nan,
                             values()),
        well_formed=rng.random((S, G, T)) < draw(st.sampled_from([0.0, 0.6, 1.0])),
        present=rng.random((S, G, T)) >= draw(st.sampled_from([0, 0.2])),
        segments=np.sort(rng.integers(0, 2, (S, T)), 1),
    )


configs = st.builds(
    reward_config,
    writer=st.sampled_from(["improvement", "format", "none"]),
    horizon=st.integers(1, 4),
    horizon_stays_in_segment=st.booleans(),
    history_baseline=st.sampled_from(["window", "fitted", "none"]),
    malformed=st.sampled_from(["zero", "group_min"]),
    format_bonus=st.sampled_from([0.0, 0.1]),
    exploration=st.sampled_from([0.0, 0.3]),
)


def apply(rewards, function):
    """Rewards with a function applied to each [S, G, T] array."""
    names = ("reward", "performance", "exploration", "well_formed", "present")
    return dataclasses.replace(rewards, **{n: function(getattr(rewards, n)) for n in names})


@settings(max_examples=200, deadline=None)
@given(groups(), configs)
def test_equals_the_page_of_formulas(rewards, config):
    got, want = credit_lib.credit(rewards, config), page_credit(rewards, config)
    np.testing.assert_allclose(got.act_advantage, want["act"], atol=1e-9)
    np.testing.assert_allclose(got.write_advantage, want["write"], atol=1e-9)
    np.testing.assert_array_equal(got.act_weight, want["act_weight"])
    np.testing.assert_array_equal(got.write_weight, want["write_weight"])


@settings(max_examples=100, deadline=None)
@given(groups(), configs, st.integers(0, 2**32 - 1))
def test_permuting_siblings_permutes_advantages(rewards, config, seed):
    order = np.random.default_rng(seed).permutation(rewards.reward.shape[1])
    before = credit_lib.credit(rewards, config)
    after = credit_lib.credit(apply(rewards, lambda x: x[:, order]), config)
    for name in ("act_advantage", "act_weight", "write_advantage", "write_weight"):
        np.testing.assert_allclose(getattr(after, name), getattr(before, name)[:, order],
                                   atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(groups(), configs, st.integers(0, 2**32 - 1))
def test_a_stateless_baseline_changes_no_act_advantage(rewards, config, seed):
    S, _, T = rewards.reward.shape
    baseline = np.random.default_rng(seed).integers(0, 100, (S, 1, T)) / 8
    gain = dataclasses.replace(rewards, reward=rewards.reward - baseline)
    np.testing.assert_allclose(credit_lib.credit(gain, config).act_advantage,
                               credit_lib.credit(rewards, config).act_advantage, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(groups(), configs)
def test_what_an_absent_task_holds_never_matters(rewards, config):
    wild = apply(rewards, lambda x: x if x.dtype == bool else np.where(rewards.present, x, 1e6))
    np.testing.assert_equal(dataclasses.asdict(credit_lib.credit(wild, config)),
                            dataclasses.asdict(credit_lib.credit(rewards, config)))


@settings(max_examples=100, deadline=None)
@given(groups(), configs)
def test_the_exploration_score_pays_the_actor_only(rewards, config):
    other = dataclasses.replace(rewards, exploration=1 - rewards.exploration)
    np.testing.assert_array_equal(credit_lib.credit(rewards, config).write_advantage,
                                  credit_lib.credit(other, config).write_advantage)


def falling_group():
    """Siblings that all do worse after position 0; sibling 0 wrote a malformed memory there."""
    performance = np.array([[[0.9, 0.2], [0.9, 0.3], [0.9, 0.4]]])
    well_formed = np.array([[[False, True], [True, True], [True, True]]])
    return credit_lib.Rewards(
        reward=performance, performance=performance, exploration=np.full((1, 3, 2), np.nan),
        well_formed=well_formed, present=np.ones((1, 3, 2), bool),
        segments=np.zeros((1, 2), int))


def test_zero_pays_a_malformed_memory_above_its_siblings():
    earned = credit_lib.credit(falling_group(), reward_config(malformed="zero"))
    assert earned.write_advantage[0, 0, 0] > max(earned.write_advantage[0, 1:, 0])


def test_group_min_never_pays_a_malformed_memory_above_its_siblings():
    earned = credit_lib.credit(falling_group(), reward_config(malformed="group_min"))
    assert earned.write_advantage[0, 0, 0] <= min(earned.write_advantage[0, 1:, 0])


def test_known_improvement():
    """K = 3, by hand: position 3 of 5 compares (r4 + r5) / 2 with (r1 + r2 + r3) / 3."""
    performance = np.array([[[0.0, 0.3, 0.6, 1.0, 0.5]]])
    w = credit_lib.improvement(performance, np.ones((1, 1, 5), bool), 3)
    np.testing.assert_allclose(w[0, 0, :4], [1.9 / 3, 2.1 / 3 - 0.15, 0.45, 0.5 - 1.9 / 3])
    assert np.isnan(w[0, 0, 4])


def test_zero_variance_fractions_count_comparable_groups_only():
    rewards = falling_group()
    earned = credit_lib.credit(rewards, reward_config())
    assert earned.zero_variance == {"reward": 0.5, "writer": 0.0}


@pytest.mark.parametrize("positions", [1, 2])
def test_a_single_task_trains_the_actor_and_never_the_last_writer(positions):
    rewards = apply(falling_group(), lambda x: x[:, :, -positions:])
    rewards = dataclasses.replace(rewards, segments=rewards.segments[:, -positions:])
    earned = credit_lib.credit(rewards, reward_config())
    assert earned.act_weight[:, :, -1].all() and not earned.write_weight[:, :, -1].any()
