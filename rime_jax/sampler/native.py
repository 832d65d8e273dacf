"""The native sampler: live sessions are decoded together on the local devices.

Each session has a slot of one cache and keeps it between turns, so that a turn feeds only the new
tokens. In rounds every request feeds a chunk of its prompt or samples a block of tokens (calls.py);
sessions join and leave between rounds. When slots run short, the session that has been idle the
longest loses its own and is computed again at its next turn. Equal beginnings are computed once
(sharing.py). Shapes are few and fixed: nothing is compiled after `warm_up`.

The devices work while the event loop goes on: a round is dispatched and awaited in a thread.

The randomness of a token depends on its session's seed and its position alone, and rows do not see
each other: what a session generates does not depend on what else is being generated.
"""

import asyncio
import collections
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rime_jax.policy.base import Policy
from rime_jax.sampler.base import Finish, Generation
from rime_jax.sampler.calls import Call, Feed, Planner, Request
from rime_jax.sampler.in_progress import InProgress
from rime_jax.sampler.program import SamplerProgram
from rime_jax.sampler.reshard import Reshard
from rime_jax.sampler.sharing import Copy, independent, share
from rime_jax.sampler.slots import Slot, Slots


class NativeSession:
    """See `sampler.base.Session`. One generation at a time; `extend` not during one.

    A generation that is cancelled or fails leaves the session as it was before.
    """

    def __init__(self, sampler: "NativeSampler", set_name: str, ids: list[int], key: np.ndarray):
        self.ids = ids
        self.set_name = set_name
        self.key = key
        self.slot: Slot | None = None
        self.request: Request | None = None
        self.closed = False
        self._sampler = sampler

    def extend(self, ids: Sequence[int]) -> None:
        if self.request is not None:
            raise RuntimeError("extend during a generation; await or cancel it first")
        self.ids.extend(ids)

    async def generate(
        self, max_new_tokens: int, temperature: float = 1.0, allowed: Sequence[int] = ()
    ) -> Generation:
        """See `sampler.base.Session`.

        Args:
          allowed: ids that are sampled among, at most the sampler's `choices`; none: all.
        """
        if self.closed:
            raise RuntimeError("generate on a closed session; open a new one")
        if self.request is not None:
            raise RuntimeError("a session generates once at a time; await the other call first")
        if not self.ids:
            raise ValueError("a session needs at least one prompt token before it can generate")
        if len(allowed) > self._sampler.choices:
            raise ValueError(f"{len(allowed)} ids to sample among, and the sampler was made with "
                             f"choices = {self._sampler.choices}")
        if len(self.ids) >= self._sampler.context_tokens:
            return Generation([], [], [], "context")
        if max_new_tokens < 1:
            return Generation([], [], [], "length")
        self.request = Request(self, max_new_tokens, temperature, allowed)
        try:
            async with self._sampler._in_progress.generation():
                self._sampler._submit(self.request)
                return await self.request.future
        except BaseException:
            self._sampler._take_back(self.request)
            raise
        finally:
            self.request = None

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._sampler._close(self)


class NativeSampler:
    """See `sampler.base.Sampler`.

    Attributes:
      version: of the parameters in use.
      generated_tokens: since the start.
      publish_s: seconds of the last publish.
    """

    def __init__(
        self,
        policy: Policy,
        role_sets: Mapping[str, str],
        stop_ids: Sequence[int],
        *,
        slots: int,
        context_tokens: int,
        decode_block: int,
        prefill_chunks: Sequence[int],
        shared_prefix: int = 128,
        devices: Sequence[jax.Device] | None = None,
        tensor: int = 1,
        generation_s: float = 0.0,
        choices: int = 0,
    ):
        """Args:
          policy: the pure functions.
          role_sets: role → name of its parameter set.
          stop_ids: ids that end a generation.
          slots: sessions that are decoded together.
          context_tokens: tokens of one session.
          decode_block: most tokens of a session per round.
          prefill_chunks: prompt tokens of a session per round, ascending; each compiled for itself.
          shared_prefix: fewest prompt tokens worth copying from another session's slot.
          devices: local devices to spread the slots over.
          tensor: devices that share one copy of the parameters; the number of such groups must
            divide `slots`.
          generation_s: seconds of one generation, waiting for a slot included; 0: no limit.
          choices: most ids that a generation can be told to sample among.

        Raises:
          ValueError: the slots cannot be spread evenly.
        """
        devices = list(devices or jax.local_devices())
        self._reshard = Reshard(policy, devices, tensor)
        self._program = SamplerProgram(
            policy, stop_ids, slots=slots, context_tokens=context_tokens, block=decode_block,
            devices=devices, tensor=tensor,
        )
        groups, few = self._program.groups, self._program.few
        self._planner = Planner(
            slots, groups, few, tuple(sorted({1, *prefill_chunks})), decode_block, context_tokens,
            choices)
        self._slots = Slots(slots, groups, policy.cuts, shared_prefix)
        self._step, self._cache = self._program.step, self._program.empty_cache()
        self._role_sets, self._stop_ids = dict(role_sets), frozenset(stop_ids)
        self._params: dict[str, Any] = {}
        # Counts what makes caches void: new parameters, and device calls that failed.
        self._epoch = 0
        self._waiting: collections.deque[Request] = collections.deque()
        self._running: dict[Slot, Request] = {}
        self._loop_task: asyncio.Task | None = None
        self._in_progress = InProgress(generation_s)
        self._rounds = 0
        self._counts: collections.Counter[str] = collections.Counter()
        self.context_tokens, self.choices = context_tokens, choices
        self.version = -1
        self.generated_tokens = 0
        self.publish_s = self._busy_s = 0.0
        # When the round that the devices work on was dispatched; None: they have none.
        self._busy_since: float | None = None

    @property
    def busy_s(self) -> float:
        """Seconds, since the start, that the devices had a round to work on."""
        since = self._busy_since
        return self._busy_s + (0.0 if since is None else time.monotonic() - since)

    @property
    def traces(self) -> int:
        """Device programs traced so far."""
        return self._program.traces

    def metrics(self) -> dict[str, float]:
        """Since the last call: prompt tokens computed and copied, and sessions evicted."""
        counts, self._counts = self._counts, collections.Counter()
        evictions, self._slots.evictions = self._slots.evictions, 0
        return {"sampler/prefilled_tokens": float(counts["prefilled"]),
                "sampler/copied_tokens": float(counts["copied"]),
                "sampler/evictions": float(evictions)}

    def open(
        self,
        role: str,
        ids: Sequence[int],
        seed: Sequence[int],
        parent: NativeSession | None = None,
    ) -> NativeSession:
        key = np.random.SeedSequence([s & 0xFFFFFFFF for s in seed]).generate_state(2, np.uint32)
        session = NativeSession(self, self._role_sets[role], list(ids), key)
        if parent is not None:
            if list(ids[: len(parent.ids)]) != parent.ids:
                raise ValueError("the parent's ids are not a prefix of the new session's")
            slot = parent.slot
            parent.close()
            if slot is not None and parent.set_name == session.set_name:
                self._slots.give(slot, session)
        return session

    async def publish(self, params: Mapping[str, Any], version: int) -> None:
        began = time.monotonic()
        made = self._made(params)
        await asyncio.get_running_loop().run_in_executor(None, jax.block_until_ready, made)
        self._put_into_use(made, version, began)

    def set_params(self, params: Mapping[str, Any], version: int) -> None:
        """`publish` for callers outside an event loop."""
        began = time.monotonic()
        self._put_into_use(jax.block_until_ready(self._made(params)), version, began)

    def _made(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._reshard(params[name]) for name in
                sorted(set(self._role_sets.values()))}

    def _put_into_use(self, made: dict[str, Any], version: int, began: float) -> None:
        self._params, self.version = made, version
        self._epoch += 1
        self._slots.forget()
        self.publish_s = time.monotonic() - began

    def warm_up(self) -> None:
        """Compiles every program; needs parameters (`set_params`)."""
        for params in self._params.values():
            for call in self._planner.idle():
                self._enqueue(params, call)
        self._copy([])
        jax.block_until_ready(self._cache)

    async def close(self) -> None:
        self._in_progress.close()
        task = self._loop_task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])
        # The devices' memory.
        self._params, self._cache = {}, None

    def _submit(self, request: Request) -> None:
        self._waiting.append(request)
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.get_running_loop().create_task(self._run())

    def _take_back(self, request: Request) -> None:
        """Undoes a request that was cancelled or failed."""
        session = request.session
        if not session.closed:
            del session.ids[request.start :]
            if session.slot is not None:
                # The last token is fed again, for what follows it.
                self._cut(session.slot, len(session.ids) - 1, request.flying)

    def _close(self, session: NativeSession) -> None:
        request, slot = session.request, session.slot
        if request is not None:
            request.future.cancel()
        if slot is not None:
            self._cut(slot, slot.cached, request is not None and request.flying)
            self._slots.release(slot)

    def _cut(self, slot: Slot, tokens: int, flying: bool) -> None:
        """The slot holds `tokens` at most; a recurrent state that moves on holds nothing known."""
        if self._slots.cuts:
            slot.cached = min(slot.cached, tokens)
        elif flying or slot.cached > tokens:
            slot.cached = 0

    async def _run(self) -> None:
        """Rounds until no request is left. A failure reaches every caller that waits."""
        try:
            while True:
                # Everyone woken by the last round first gets to its next request, so that one
                # round serves all; three turns also pass through a task or a wait_for.
                for _ in range(3):
                    await asyncio.sleep(0)
                self._admit()
                if not self._running:
                    return
                await self._round()
        except BaseException as error:
            for request in [*self._running.values(), *self._waiting]:
                if not request.future.done():
                    if isinstance(error, Exception):
                        request.future.set_exception(error)
                    else:
                        request.future.cancel()
            self._running.clear()
            self._waiting.clear()
            self._busy_since = None
            # The cache was donated to the call that failed.
            self._cache = self._program.empty_cache()
            self._epoch += 1
            if not isinstance(error, Exception):
                raise

    def _admit(self) -> None:
        """Gives waiting requests the slot of their session, or another, in order of arrival."""
        self._running = {s: r for s, r in self._running.items() if not r.future.done()}
        waiting = [r for r in self._waiting if not r.future.done()]
        for request in waiting:
            if request.session.slot is not None:
                self._running[request.slot] = request
        self._waiting.clear()
        for request in waiting:
            session = request.session
            if session.slot is None and self._slots.take(
                    session, session.set_name, self._epoch, self._running) is None:
                self._waiting.append(request)
            else:
                self._running[request.slot] = request

    async def _round(self) -> None:
        """One chunk or one block for every running request."""
        self._rounds += 1
        version = self.version
        dispatched: list[tuple[Call, Any]] = []
        for slot, request in self._running.items():
            slot.used = self._rounds
            if slot.epoch != self._epoch or slot.set_name != request.session.set_name:
                slot.epoch, slot.set_name = self._epoch, request.session.set_name
                slot.cached, request.leader, request.looked = 0, None, False
        for set_name in sorted({r.session.set_name for r in self._running.values()}):
            own = [r for r in self._running.values() if r.session.set_name == set_name]
            going, copies = share(own, self._slots)
            for batch in independent(copies, self._program.few, self._program.groups):
                self._copy(batch)
            for call in self._planner.plan(going):
                dispatched.append((call, self._enqueue(self._params[set_name], call)))
                if self._busy_since is None:
                    self._busy_since = time.monotonic()
        flying = [feed for call, _ in dispatched for feed in call.feeds]
        for feed in flying:
            feed.request.flying = True
        results, ended = await asyncio.get_running_loop().run_in_executor(
            None, _fetch, [out for _, out in dispatched])
        for feed in flying:
            feed.request.flying = False
        self._busy_s += ended - self._busy_since
        self._busy_since = None
        for (call, _), (ids, logprobs, lengths) in zip(dispatched, results, strict=True):
            for feed in call.feeds:
                at = feed.place
                self._harvest(feed, ids[at], logprobs[at], int(lengths[at]), version)

    def _enqueue(self, params: Any, call: Call) -> Any:
        placed = jax.device_put((call.rows, *call.arrays), self._program.by_slot)
        self._cache, *out = self._step(params, self._cache, *placed)
        return out

    def _copy(self, copies: Sequence[Copy]) -> None:
        groups, few = self._program.groups, max(1, self._program.few)
        source = np.zeros((groups, few), np.int32)
        # Numbers that are no slots' copy nothing.
        target = np.tile(self._planner.slots + np.arange(few, dtype=np.int32), (groups, 1))
        taken: collections.Counter[int] = collections.Counter()
        for copy in copies:
            at = copy.target.group, taken[copy.target.group]
            source[at], target[at] = copy.source.row, copy.target.row
            taken[copy.target.group] += 1
            self._counts["copied"] += copy.target.cached
        placed = jax.device_put((source.ravel(), target.ravel()), self._program.by_slot)
        (self._cache,) = self._program.copy(self._cache, *placed)

    def _harvest(self, feed: Feed, ids, logprobs, n: int, version: int) -> None:
        request, slot, session = feed.request, feed.slot, feed.request.session
        if request.future.done():
            return  # Cancelled meanwhile; its slot was dealt with then.
        slot.cached += feed.count
        self._counts["prefilled"] += feed.count
        if n:
            new = ids[:n].tolist()
            session.ids.extend(new)
            # The last sampled token has not been fed yet.
            slot.cached += n - 1
            request.ids += new
            request.logprobs += logprobs[:n].tolist()
            request.versions += [version] * n
            request.left -= n
            self.generated_tokens += n
        reason: Finish
        if request.ids and request.ids[-1] in self._stop_ids:
            reason = "stop"
        elif request.left <= 0:
            reason = "length"
        elif len(session.ids) >= self.context_tokens:
            reason = "context"
        else:
            return
        del self._running[slot]
        request.finish(reason)


def _fetch(outputs: Sequence[Any]) -> tuple[Sequence[Any], float]:
    """Results on the host, and when they were there."""
    return jax.device_get(outputs), time.monotonic()
