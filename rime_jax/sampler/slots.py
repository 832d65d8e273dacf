"""Which session has which slot of the cache, and what the cache holds there."""

import dataclasses
from collections.abc import Collection
from typing import Any


@dataclasses.dataclass(eq=False)
class Slot:
    """One row of the cache.

    Attributes:
      group: number of the group of devices that has it.
      row: its number within the group.
      session: that has it; None: it is free, but may still hold what another can begin with.
      set_name, epoch: parameters that made what it holds, and when.
      ids: tokens of the session, or those that were left behind.
      cached: it holds the state after ids[:cached].
      used: when it last served a request.
    """

    group: int
    row: int
    session: Any = None
    set_name: str = ""
    epoch: int = -1
    ids: list[int] = dataclasses.field(default_factory=list)
    cached: int = 0
    used: int = 0

    def prefix_of(self, ids: list[int], set_name: str, epoch: int, cuts: bool) -> int:
        """Tokens of `ids` that it holds, at most all but the last, which must be fed.

        Args:
          cuts: a cache can be cut back to fewer tokens.
        """
        if self.set_name != set_name or self.epoch != epoch:
            return 0
        n = common_prefix(self.ids, ids, min(self.cached, len(ids) - 1))
        return n if cuts or n == self.cached else 0


class Slots:
    """All slots of a sampler, spread over its groups of devices.

    Attributes:
      evictions: sessions that lost their slot between two turns.
    """

    def __init__(self, count: int, groups: int, cuts: bool, minimum: int):
        """Args:
          count: slots; groups: of devices.
          cuts: a cache can be cut back to fewer tokens.
          minimum: fewest tokens that are worth looking for another slot that holds them.
        """
        each = count // groups
        self.all = [Slot(group, row) for group in range(groups) for row in range(each)]
        self.cuts, self.minimum = cuts, minimum
        self.evictions = 0

    def take(
        self, session: Any, set_name: str, epoch: int, busy: Collection[Slot]
    ) -> Slot | None:
        """A slot for a session that has none; None: all serve requests.

        Preferred is a free one that holds the most of the session's tokens, then one of the
        emptiest group; without a free one, that of the session that has been idle the longest.

        Args:
          busy: slots that serve a request.
        """
        def holds(slot: Slot) -> int:
            if len(session.ids) <= self.minimum:
                return 0
            return slot.prefix_of(session.ids, set_name, epoch, self.cuts)

        free = [s for s in self.all if s.session is None]
        if free:
            room = [0] * (1 + self.all[-1].group)
            for slot in free:
                room[slot.group] += 1
            chosen = max(free, key=lambda s: (holds(s), room[s.group], -s.used))
        else:
            idle = [s for s in self.all if s not in busy]
            if not idle:
                return None
            chosen = min(idle, key=lambda s: s.used)
            self.release(chosen)
            self.evictions += 1
        cached = holds(chosen)
        self.give(chosen, session)
        chosen.set_name, chosen.epoch, chosen.cached = set_name, epoch, cached
        return chosen

    def give(self, slot: Slot, session: Any) -> None:
        """The slot, with what it holds, is the session's from now on."""
        slot.session, slot.ids = session, session.ids
        session.slot = slot

    def release(self, slot: Slot) -> None:
        """Frees a slot; what it holds stays until another session needs it."""
        slot.session.slot = None
        slot.session, slot.ids = None, slot.ids[: slot.cached]

    def forget(self) -> None:
        """Free slots hold nothing: their past decides nothing any more."""
        for slot in self.all:
            if slot.session is None:
                slot.ids, slot.cached, slot.used, slot.epoch = [], 0, 0, -1


def common_prefix(a: list[int], b: list[int], limit: int) -> int:
    """Length of the longest common prefix, at most `limit`."""
    limit = min(limit, len(a), len(b))
    # In growing steps: most pairs part early, and slices cost their length.
    low, step = 0, 64
    while a[low : min(low + step, limit)] == b[low : min(low + step, limit)]:
        low += step
        step *= 2
        if low >= limit:
            return limit
    high = min(low + step, limit)
    while low < high - 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
