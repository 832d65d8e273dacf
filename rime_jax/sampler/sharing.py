"""Prompts that begin alike are computed once: a later one copies the earlier one's state.

Siblings of a group open with the same prompt, and all prompts with the same instructions. A request
with a long prompt looks for a slot of its group of devices that holds the prompt's beginning. If
another request is about to feed the same beginning, it waits for it. A cache of keys and values can
be cut to any length; a recurrent state cannot, so there the earlier request pauses where the two
prompts part.
"""

import dataclasses
from collections.abc import Sequence

from rime_jax.sampler.calls import Request
from rime_jax.sampler.slots import Slot, Slots, common_prefix


@dataclasses.dataclass(frozen=True)
class Copy:
    """The state of one slot is to be put into another one of the same group."""

    source: Slot
    target: Slot


def share(
    requests: Sequence[Request], slots: Slots
) -> tuple[list[Request], list[Copy]]:
    """Requests that go on by themselves, and copies to be made, in order, before they do.

    Args:
      requests: all that run with one parameter set, their slots up to date.
    """
    for request in requests:
        request.stop_at = None
    going: list[Request] = []
    copies: list[Copy] = []
    for request in requests:
        if request.leader is not None and not _still_leads(request, requests):
            request.leader, request.looked = None, False
        if request.leader is not None and _holds(request.leader.slot, request.shared, slots.cuts):
            copies.append(_copy(request.leader.slot, request, request.shared))
            request.leader, request.looked = None, False
        if not request.looked and request.pending > slots.minimum:
            request.looked = True
            copies += _look_for_slot(request, slots)
            _look_for_leader(request, going, slots.minimum)
        if request.leader is None:
            going.append(request)
        elif not slots.cuts:
            leader = request.leader
            leader.stop_at = min(request.shared, leader.stop_at or request.shared)
    return going, copies


def independent(copies: Sequence[Copy], few: int, groups: int) -> list[list[Copy]]:
    """Batches that one program can make: a copy's source is no target before it in its batch."""
    batches: list[list[Copy]] = []
    for copy in copies:
        last = batches[-1] if batches else None
        if (last is None or copy.source in [c.target for c in last]
                or sum(c.target.group == copy.target.group for c in last) >= max(1, few)):
            batches.append([])
        batches[-1].append(copy)
    return batches


def _still_leads(request: Request, requests: Sequence[Request]) -> bool:
    leader = request.leader
    return leader in requests and leader.slot.group == request.slot.group


def _holds(slot: Slot, tokens: int, cuts: bool) -> bool:
    return slot.cached >= tokens if cuts else slot.cached == tokens


def _look_for_slot(request: Request, slots: Slots) -> list[Copy]:
    own, ids = request.slot, request.session.ids
    found = [(s.prefix_of(ids, own.set_name, own.epoch, slots.cuts), s) for s in slots.all
             if s.group == own.group and s is not own and s.cached >= own.cached + slots.minimum
             and _goes_on_alike(request, s.ids, slots.minimum)]
    tokens, source = max(found, key=lambda pair: pair[0], default=(0, None))
    if tokens - own.cached < slots.minimum:
        return []
    return [_copy(source, request, tokens)]


def _look_for_leader(request: Request, going: Sequence[Request], minimum: int) -> None:
    own, ids = request.slot, request.session.ids
    for other in going:
        theirs = other.session.ids
        if other.slot.group != own.group or not _goes_on_alike(request, theirs, minimum):
            continue
        tokens = common_prefix(ids, theirs, min(len(ids), len(theirs)) - 1)
        if tokens - own.cached >= minimum and tokens > other.slot.cached:
            request.leader, request.shared = other, tokens
            return


def _goes_on_alike(request: Request, theirs: Sequence[int], minimum: int) -> bool:
    """Nothing can be gained where the first tokens that the cache lacks differ. Long conversations
    are compared in full only with those few that pass this."""
    first = slice(request.slot.cached, request.slot.cached + minimum)
    return theirs[first] == request.session.ids[first]


def _copy(source: Slot, request: Request, tokens: int) -> Copy:
    request.slot.cached = tokens
    return Copy(source, request.slot)
