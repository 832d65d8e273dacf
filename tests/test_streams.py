"""The source of streams deals the same streams however it is asked, stopped and started."""

from hypothesis import given
from hypothesis import strategies as st

from rime_jax.streams import Stream, StreamSource, Task


def make(i, rng):
    drawn = rng.integers(1 << 30, size=2).tolist()
    return Stream(f"s{i}", tuple(Task(f"s{i}/{t}", number) for t, number in enumerate(drawn)))


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 1 << 40))
def test_streams_do_not_depend_on_how_many_are_taken_at_once(sizes, seed):
    one, other = StreamSource(make, seed), StreamSource(make, seed)
    dealt = [stream for n in sizes for stream in one.take(n)]
    assert dealt == other.take(sum(sizes))
    assert [s.id for s in dealt] == [f"s{i}" for i in range(sum(sizes))]


@given(st.integers(0, 20), st.integers(1, 5))
def test_a_restored_source_deals_what_the_unbroken_one_would(before, after):
    unbroken, stopped, resumed = (StreamSource(make, 3) for _ in range(3))
    unbroken.take(before)
    stopped.take(before)
    resumed.restore(stopped.state())
    assert resumed.take(after) == unbroken.take(after)
    assert resumed.state() == unbroken.state() == before + after


def test_seeds_and_numbers_give_different_streams():
    first, second = StreamSource(make, 0).take(50), StreamSource(make, 1).take(50)
    payloads = {tuple(t.payload for t in s.tasks) for s in (*first, *second)}
    assert len(payloads) == 100
