"""Slots, sharing and the division into calls, without a device."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax.sampler import calls, sharing, slots


@dataclasses.dataclass(eq=False)
class Session:
    ids: list
    key: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2, np.uint32))
    slot: slots.Slot | None = None


class Request(calls.Request):
    """One that needs no event loop."""

    def __init__(self, session, left=5):
        self.session, self.start, self.left, self.temperature = session, 0, left, 1.0
        self.looked, self.leader, self.shared, self.stop_at = False, None, 0, None


def running(table, *prompts):
    """A request with a slot for each prompt."""
    found = []
    for ids in prompts:
        session = Session(list(ids))
        table.take(session, "set", 0, {r.slot for r in found})
        found.append(Request(session))
    return found


small = st.lists(st.integers(0, 2), max_size=12)


@given(small, small, st.integers(0, 12))
def test_common_prefix_is_the_longest(a, b, limit):
    n = slots.common_prefix(a, b, limit)
    assert a[:n] == b[:n] and n <= min(limit, len(a), len(b))
    assert n == min(limit, len(a), len(b)) or a[n] != b[n]


def test_the_session_that_was_idle_longest_loses_its_slot():
    table = slots.Slots(2, 1, True, 100)
    first, second = running(table, [1], [2])
    first.slot.used, second.slot.used = 5, 3
    late = Session([3])
    assert table.take(late, "set", 0, {first.slot, second.slot}) is None
    idle = second.slot
    assert table.take(late, "set", 0, set()) is idle
    assert second.session.slot is None and late.slot is idle and table.evictions == 1


def test_slots_fill_the_groups_evenly():
    table = slots.Slots(8, 4, True, 100)
    assert [r.slot.group for r in running(table, *[[1]] * 6)] == [0, 1, 2, 3, 0, 1]


# A recurrent state cannot be cut back: it serves only what goes on from all of it.
@pytest.mark.parametrize("cuts, cached, epoch, held", [
    (True, 4, 0, 3), (False, 4, 0, 0), (True, 3, 0, 3), (False, 3, 0, 3), (True, 4, 1, 0)])
def test_a_freed_slot_serves_one_that_begins_as_it_holds(cuts, cached, epoch, held):
    table = slots.Slots(1, 1, cuts, 2)
    (old,) = running(table, [1, 2, 3, 4])
    old.slot.cached = cached
    table.release(old.slot)
    assert table.take(Session([1, 2, 3, 9, 9]), "set", epoch, set()).cached == held


@pytest.mark.parametrize("cuts", [True, False])
def test_siblings_wait_for_the_first_and_copy_what_it_fed(cuts):
    table = slots.Slots(4, 1, cuts, 3)
    lead, twin, cousin = running(table, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9, 9])
    going, copies = sharing.share([lead, twin, cousin], table)
    assert going == [lead] and not copies
    assert lead.stop_at == (None if cuts else 4)
    lead.slot.cached = 4
    going, copies = sharing.share([lead, twin, cousin], table)
    assert [(c.source, c.target) for c in copies] == [(lead.slot, cousin.slot)]
    assert cousin.slot.cached == 4 and going == [lead, cousin]
    lead.slot.cached = 5
    going, copies = sharing.share([lead, twin, cousin], table)
    assert [c.target for c in copies] == [twin.slot] and going == [lead, twin, cousin]
    assert twin.slot.cached == 5


@given(st.data(), st.booleans())
def test_a_copy_is_made_of_the_slot_that_saves_most_where_it_saves_enough(data, cuts):
    minimum = data.draw(st.integers(1, 4))
    table = slots.Slots(4, 1, cuts, minimum)
    request, *others = running(table, *data.draw(
        st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=4, max_size=4)))
    for one in (request, *others):
        one.slot.cached = data.draw(st.integers(0, len(one.session.ids) - 1))
    before, ids = request.slot.cached, request.session.ids
    saved = max(o.slot.prefix_of(ids, "set", 0, cuts) for o in others) - before
    _, copies = sharing.share([request], table)
    if saved >= minimum:
        assert [c.target for c in copies] == [request.slot]
        assert request.slot.cached == before + saved
        assert copies[0].source.prefix_of(ids, "set", 0, cuts) == before + saved
    else:
        assert not copies and request.slot.cached == before


def test_one_whose_leader_is_gone_goes_on_by_itself():
    table = slots.Slots(4, 1, True, 3)
    lead, twin = running(table, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    sharing.share([lead, twin], table)
    assert twin.leader is lead
    table.release(lead.slot)
    assert sharing.share([twin], table) == ([twin], [])


def test_few_prompts_among_many_get_a_call_of_their_own():
    planner = calls.Planner(slots=16, groups=1, few=2, chunks=(1, 4), block=8, context_tokens=20)
    table = slots.Slots(16, 1, True, 100)
    requests = running(table, *[[1, 2]] * 9, *[[1] * 7] * 3)
    for request in requests[:9]:
        request.slot.cached = 1
    first, others = planner.plan(requests)
    assert [f.request for f in first.feeds] == requests[9:11]
    assert first.rows.tolist() == [r.slot.row for r in requests[9:11]]
    assert [f.request for f in others.feeds] == requests[:9] and others.rows is None
    assert {f.count for f in first.feeds} == {4} and {f.budget for f in first.feeds} == {0}
    assert {(f.count, f.budget) for f in others.feeds} == {(1, 5)}
    tokens, start, count, budget, _, _ = others.arrays
    assert tokens.shape == (16, 1) and count.sum() == 9 and budget.max() == 5
    assert start[requests[0].slot.row] == 1 and tokens[requests[0].slot.row, 0] == 2


def test_rows_that_nobody_needs_have_no_slot():
    planner = calls.Planner(slots=32, groups=2, few=2, chunks=(1, 4), block=8, context_tokens=20)
    table = slots.Slots(32, 2, True, 100)
    (call,) = planner.plan(running(table, [1, 2, 3], [1, 2], [5]))
    assert [f.place for f in call.feeds] == [0, 2, 1]
    assert call.rows[:3].tolist() == [0, 1, 0] and call.rows[3] >= 16


def test_a_generation_never_exceeds_its_limits():
    planner = calls.Planner(slots=4, groups=1, few=0, chunks=(1, 4), block=8, context_tokens=6)
    table = slots.Slots(4, 1, True, 100)
    requests = running(table, [1], [1, 2, 3, 4])
    requests[0].left = 3
    (call,) = planner.plan(requests)
    assert [f.budget for f in call.feeds] == [3, 2]
