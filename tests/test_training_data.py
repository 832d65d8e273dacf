"""Rewards that several processes hold together."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax import training_data
from rime_jax.learner import credit as credit_lib


def rewards(rng, groups, siblings, positions):
    shape = (groups, siblings, positions)
    present = rng.random(shape) < 0.8
    known = [np.where(present, rng.random(shape), np.nan) for _ in range(3)]
    return credit_lib.Rewards(*known, well_formed=present & (rng.random(shape) < 0.5),
                              present=present, segments=rng.integers(0, 2, (groups, positions)))


def share_of(all_rewards, own):
    """What the process knows that played the groups `own`: as `rewards_of` leaves the others."""
    played = {}
    for field in dataclasses.fields(all_rewards):
        value = getattr(all_rewards, field.name)
        empty = np.full_like(value, np.nan if value.dtype.kind == "f" else 0)
        empty[own] = value[own]
        played[field.name] = empty[: max(own, default=0) + 1]
    return credit_lib.Rewards(**played)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_shares_of_processes_are_the_rewards_of_one(seed, players):
    everything = rewards(np.random.default_rng(seed), len(players), 3, 4)
    players = np.array(players)
    shares = [share_of(everything, np.flatnonzero(players == i)) for i in range(3)]
    merged = training_data.whole(shares)
    lost = ~everything.present.any((1, 2))
    for field in dataclasses.fields(everything):
        want, got = (np.array(getattr(r, field.name)) for r in (everything, merged))
        # Of a group that nobody could play, the segments are of no use.
        np.testing.assert_array_equal(got[~lost], want[~lost])
        assert got.shape == want.shape
    assert not merged.present[lost].any()
