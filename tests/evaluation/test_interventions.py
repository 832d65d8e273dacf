"""Memory blanked, swapped and corrupted, with numbers that the counting game gives by hand."""

import asyncio
import re

import numpy as np
import pytest

from rime_jax.evaluation import numbers, protocols
from tests.evaluation import games

STREAMS, ROLLOUTS = 3, 2


@pytest.fixture(scope="module")
def played():
    """(what was played, the sampler, the parts) under all interventions."""
    built = games.built(games.Reader(games.counting),
                        eval__interventions=("blanked", "swapped", "corrupted"))
    return asyncio.run(protocols.play(built, ROLLOUTS)), built.sampler, built


def test_an_intact_memory_grows_by_a_fact_a_task(played):
    shape = (STREAMS, ROLLOUTS, games.TASKS)
    expected = np.broadcast_to(0.1 * np.arange(games.TASKS), shape)
    np.testing.assert_allclose(played[0].with_memory, expected)
    np.testing.assert_array_equal(played[0].stateless, np.zeros(shape))
    assert np.isnan(played[0].true_memory).all() and played[0].lost == 0


def test_a_swapped_memory_is_what_the_next_stream_read_at_that_place(played):
    sessions = [s for s in played[1].opened if s.label == 3]
    assert len(sessions) == STREAMS * ROLLOUTS * games.TASKS
    for session in sessions:
        other = (session.place.group + 1) % STREAMS
        facts = {games.fact(other, t) for t in range(session.place.position)}
        assert set(re.findall(r"- s\dt\d door: it is \w+", session.text)) == facts
    np.testing.assert_array_equal(played[0].swapped, np.zeros((STREAMS, ROLLOUTS, games.TASKS)))


def begins(played):
    return [(s, r, int(np.argmax(~np.isnan(played.corrupted[s, r]))))
            for s in range(STREAMS) for r in range(ROLLOUTS)]


def test_one_fact_is_false_from_some_task_on_and_the_writer_goes_on_from_there(played):
    """Stream 0 is right again at once, stream 1 believes it, stream 2 forgets it."""
    found = played[0]
    for s, r, first in begins(found):
        assert 1 <= first and np.isnan(found.corrupted[s, r, :first]).all()
        later = np.arange(first + 1, games.TASKS)
        np.testing.assert_allclose(found.corrupted[s, r, first], 0.1 * (first - 2), atol=1e-9)
        np.testing.assert_allclose(
            found.corrupted[s, r, first + 1:], 0.1 * (later - (0, 2, 1)[s]), atol=1e-9)
        np.testing.assert_array_equal(found.corrected[s, r, first:], float(s == 0))
        np.testing.assert_array_equal(found.still_false[s, r, first:], float(s == 1))
    assert len({first for _, _, first in begins(found)}) > 1


def test_damage_and_recovery_are_those_of_the_false_fact(played):
    damage = np.zeros((STREAMS, ROLLOUTS))
    for s, r, first in begins(played[0]):
        behind = games.TASKS - first - 1
        damage[s, r] = (0.2 + (0, 0.2, 0.1)[s] * behind) / (behind + 1)
    found = numbers.statistics(played[0])
    # Each rollout's mean over its own tasks, then over rollouts.
    np.testing.assert_allclose(found["damage"], damage.mean(axis=1))
    np.testing.assert_allclose(found["recovered"], [1, 0, 0])
    row = protocols.results({"p": played[0]}, played[2])["policies"]["p"]
    assert row["corruption"]["rollouts"] == STREAMS * ROLLOUTS
    assert row["corruption"]["corrected_after"][0] == pytest.approx(1 / 3)
    assert row["corruption"]["still_false_after"][0] == pytest.approx(1 / 3)


def test_a_corrupted_rollout_meets_the_randomness_of_the_intact_one(played):
    """Its sessions are those of the intact one with another memory, from the false fact on."""
    seeds = [s.seed for s in played[1].opened if s.label == 0 and s.place.role == "act"]
    again = sum(games.TASKS - first for *_, first in begins(played[0]))
    assert len(seeds) == STREAMS * ROLLOUTS * games.TASKS + again
    assert len(set(seeds)) == STREAMS * ROLLOUTS * games.TASKS


def test_without_a_written_memory_there_is_nothing_to_swap_or_corrupt():
    built = games.built(games.Reader(games.counting), eval__scaffolds=("stateless",),
                        eval__interventions=("blanked", "swapped", "corrupted"))
    found = asyncio.run(protocols.play(built, ROLLOUTS))
    assert np.isnan(found.swapped).all() and np.isnan(found.corrupted).all()
    assert not found.with_memory.any() and found.scaffold == "stateless"
