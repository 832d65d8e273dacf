"""Which server takes the next request."""

import pytest

from rime_jax.judge import servers


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(servers, "time", clock)
    return clock


def fail(pool, times):
    for _ in range(times):
        pool.give_back(pool.take(), worked=False)


def test_the_least_loaded_server_takes_the_next_request(clock):
    pool = servers.Servers("abc", 10.0)
    taken = [pool.take() for _ in range(6)]
    assert sorted(s.url for s in taken) == list("aabbcc")
    pool.give_back(taken[4], worked=True)
    assert pool.take() is taken[4]


def test_a_server_rests_after_three_failures_in_a_row(clock):
    pool = servers.Servers("a", 10.0)
    fail(pool, 2)
    pool.give_back(pool.take(), worked=True)
    fail(pool, 3)
    assert pool.take() is None
    clock.now += 9.9
    assert pool.take() is None


def test_after_its_rest_a_server_gets_one_trial_at_a_time(clock):
    pool = servers.Servers("a", 10.0)
    fail(pool, 3)
    clock.now += 10
    trial = pool.take()
    assert trial is not None and pool.take() is None
    pool.give_back(trial, worked=False)
    assert pool.take() is None
    clock.now += 10
    pool.give_back(pool.take(), worked=True)
    assert [pool.take(), pool.take()] == [trial, trial]


def test_a_trial_is_due_also_while_others_serve(clock):
    pool = servers.Servers("ab", 10.0)
    for _ in range(3):
        sick, well = sorted([pool.take(), pool.take()], key=lambda s: s.url)
        pool.give_back(sick, worked=False)
        pool.give_back(well, worked=True)
    assert [pool.take().url for _ in range(3)] == list("bbb")
    clock.now += 10
    assert [pool.take().url for _ in range(3)] == list("abb")
