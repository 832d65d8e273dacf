"""What the next calls of the device program feed: requests, and their division into calls."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rime_jax.sampler.base import Finish, Generation
from rime_jax.sampler.slots import Slot


class Request:
    """One `generate` call on its way: what it has produced, and the future that waits.

    Attributes:
      start: tokens of the session when it began.
      left: tokens that it may still sample.
      allowed: ids that it samples among; none: all.
      looked: it has looked for a slot that holds the beginning of its tokens.
      leader: another request that is feeding tokens which both begin with; this one waits for
        them; `shared`: their number.
      stop_at: tokens after which it pauses so that others can copy its state; None: nobody waits.
      flying: the devices work on it.
    """

    def __init__(
        self, session: Any, max_new_tokens: int, temperature: float, allowed: Sequence[int]
    ):
        self.session = session
        self.start = len(session.ids)
        self.left = max_new_tokens
        self.temperature = temperature
        self.allowed = allowed
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.looked = False
        self.leader: Request | None = None
        self.shared = 0
        self.stop_at: int | None = None
        self.flying = False
        self.future: asyncio.Future = asyncio.get_running_loop().create_future()

    @property
    def slot(self) -> Slot:
        return self.session.slot

    @property
    def pending(self) -> int:
        """Tokens that the cache lacks; at least 1."""
        return len(self.session.ids) - self.slot.cached

    @property
    def to_feed(self) -> int:
        """Tokens that it wants to feed next."""
        return self.pending if self.stop_at is None else self.stop_at - self.slot.cached

    def finish(self, reason: Finish) -> None:
        self.future.set_result(Generation(self.ids, self.logprobs, self.versions, reason))


@dataclasses.dataclass
class Feed:
    """A row of a call: `count` tokens from the session's cached ones on, then up to `budget`."""

    request: Request
    slot: Slot
    count: int
    budget: int
    place: int = 0


@dataclasses.dataclass(frozen=True)
class Planner:
    """Divides what waits into calls of few shapes.

    Attributes:
      slots, groups: of the sampler.
      few: rows of each group in a call for a few slots; 0: there are none.
      chunks: tokens per row that a call can feed, ascending, the first of them 1.
      block: most tokens that a row samples per call.
      context_tokens: of one session.
      choices: most ids that a request can sample among; 0: all sample among all.
    """

    slots: int
    groups: int
    few: int
    chunks: tuple[int, ...]
    block: int
    context_tokens: int
    choices: int = 0

    def idle(self) -> list["Call"]:
        """A call of every shape that there is, which feeds nothing."""
        return [call for chunk in self.chunks for call in (
            self._all_rows([], chunk), *([self._few_rows([], chunk)] if self.few else []))]

    def plan(self, requests: Sequence[Request]) -> list["Call"]:
        """The next calls, in order; requests beyond what they hold wait for the round after.

        A prompt would make all others compute as many tokens as it feeds. So where the minority
        feeds prompts, a few of them get a call of their own before the others go on.
        """
        feeding = [r for r in requests if r.to_feed > 1 or r.stop_at is not None]
        if (not self.few or self._widest(requests) <= self.few
                or 2 * len(feeding) > len(requests) or not feeding):
            return [self._call(requests, self.block)]
        room = Counter({group: self.few for group in range(self.groups)})
        first = []
        for request in feeding:
            if room[request.slot.group]:
                room[request.slot.group] -= 1
                first.append(request)
        others = [r for r in requests if r.to_feed <= 1 and r.stop_at is None]
        return [self._call(first, 1), self._call(others, self.block)]

    def _call(self, requests: Sequence[Request], block: int) -> "Call":
        longest = max(r.to_feed for r in requests)
        chunk = next((c for c in self.chunks if c >= longest), self.chunks[-1])
        feeds = [self._feed(r, chunk, block) for r in requests]
        if self.few and self._widest(requests) <= self.few:
            return self._few_rows(feeds, chunk)
        return self._all_rows(feeds, chunk)

    def _feed(self, request: Request, chunk: int, block: int) -> Feed:
        count = min(request.to_feed, chunk)
        room = self.context_tokens - len(request.session.ids)
        budget = min(block, request.left, room) if count == request.pending else 0
        return Feed(request, request.slot, count, budget)

    def _all_rows(self, feeds: list[Feed], chunk: int) -> "Call":
        """A call with a row for every slot."""
        for feed in feeds:
            feed.place = feed.slot.group * (self.slots // self.groups) + feed.slot.row
        return Call(feeds, None, _arrays(feeds, chunk, self.slots, self.choices))

    def _few_rows(self, feeds: list[Feed], chunk: int) -> "Call":
        """A call with `few` rows for each group; rows that nobody needs have no slot."""
        each = self.slots // self.groups
        rows = np.tile(np.arange(each, each + self.few, dtype=np.int32), self.groups)
        taken = Counter()
        for feed in feeds:
            group = feed.slot.group
            feed.place = group * self.few + taken[group]
            taken[group] += 1
            rows[feed.place] = feed.slot.row
        return Call(feeds, rows, _arrays(feeds, chunk, self.groups * self.few, self.choices))

    def _widest(self, requests: Sequence[Request]) -> int:
        return max(Counter(r.slot.group for r in requests).values())


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of `SamplerProgram.step`.

    Attributes:
      feeds: what it serves; `place` is the row of each.
      rows: as the program wants them, or None.
      arrays: its other arguments after the cache, on the host.
    """

    feeds: list[Feed]
    rows: np.ndarray | None
    arrays: tuple[np.ndarray, ...]


def _arrays(feeds: list[Feed], chunk: int, rows: int, choices: int) -> tuple[np.ndarray, ...]:
    tokens = np.zeros((rows, chunk), np.int32)
    start, count, budget = (np.zeros(rows, np.int32) for _ in range(3))
    keys, temperature = np.zeros((rows, 2), np.uint32), np.ones(rows, np.float32)
    allowed = np.full((rows, choices), -1, np.int32)
    for feed in feeds:
        at, session, cached = feed.place, feed.request.session, feed.slot.cached
        tokens[at, : feed.count] = session.ids[cached : cached + feed.count]
        start[at], count[at], budget[at] = cached, feed.count, feed.budget
        keys[at], temperature[at] = session.key, feed.request.temperature
        if choices:
            allowed[at, : len(feed.request.allowed)] = feed.request.allowed
    return tokens, start, count, budget, keys, temperature, *([allowed] if choices else [])
