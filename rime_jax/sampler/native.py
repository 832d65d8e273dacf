"""The native sampler: all live sessions are decoded together on the local devices.

Each session owns a slot of one cache and keeps it between turns: a turn feeds only the tokens that
are new, then decodes until every slot has stopped, in one dispatch. Shapes are fixed (slots,
prefill chunk), so nothing is compiled after `warm_up`. Slots are spread over the local devices, and
each device decodes its own without waiting for the others.

The randomness of a token depends on its session's seed and its position alone, and rows do not see
each other: what a session generates does not depend on what else is being generated.
"""

import asyncio
import collections
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rime_jax.policy.base import Policy
from rime_jax.sampler.base import Generation
from rime_jax.sampler.program import SamplerProgram


class NativeSession:
    """See `sampler.base.Session`."""

    def __init__(self, sampler: "NativeSampler", set_name: str, ids: list[int], key: np.ndarray):
        self.ids = ids
        self._sampler = sampler
        self._set = set_name
        self._key = key
        self._slot: int | None = None
        # The cache holds ids[:cached], computed in the sampler's `epoch`.
        self._cached = 0
        self._epoch = -1
        self._closed = False

    def extend(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)

    async def generate(self, max_new_tokens: int, temperature: float = 1.0) -> Generation:
        if self._closed:
            raise RuntimeError("generate on a closed session; open a new one")
        if not self.ids:
            raise ValueError("a session needs at least one prompt token before it can generate")
        if len(self.ids) >= self._sampler.context_tokens:
            return Generation([], [], [], "context")
        if max_new_tokens < 1:
            return Generation([], [], [], "length")
        return await self._sampler._submit(_Request(self, max_new_tokens, temperature))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._sampler._release(self)


class _Request:
    """One `generate` call on its way: what it has produced, and the future that waits."""

    def __init__(self, session: NativeSession, max_new_tokens: int, temperature: float):
        self.session = session
        self.left = max_new_tokens
        self.temperature = temperature
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.future: asyncio.Future = asyncio.get_running_loop().create_future()

    def finish(self, reason: str) -> None:
        if not self.future.done():
            self.future.set_result(
                Generation(self.ids, self.logprobs, self.versions, reason)
            )


class NativeSampler:
    """See `sampler.base.Sampler`."""

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
        devices: Sequence[jax.Device] | None = None,
        tensor: int = 1,
    ):
        """Args:
          policy: the pure functions.
          role_sets: role → name of its parameter set.
          stop_ids: ids that end a generation.
          slots: sessions that live at once; further ones wait for a slot.
          context_tokens: tokens of one session.
          decode_block: most tokens per dispatch.
          prefill_chunks: prompt tokens per dispatch, ascending; one compiled program each.
          devices: local devices to spread the slots over.
          tensor: devices that share one copy of the parameters; the number of such groups must
            divide `slots`.

        Raises:
          ValueError: the slots cannot be spread evenly.
        """
        self.context_tokens = context_tokens
        self.version = -1
        self.generated_tokens = 0
        self._role_sets = dict(role_sets)
        self._stop_ids = tuple(stop_ids)
        self._slots = slots
        self._block = decode_block
        self._chunks = tuple(prefill_chunks)
        self._program = SamplerProgram(
            policy, stop_ids, slots=slots, context_tokens=context_tokens, block=decode_block,
            devices=list(devices or jax.local_devices()), tensor=tensor,
        )
        self._step = self._program.step
        self._cache = self._program.empty_cache()
        # Counts what makes caches void: new parameters, and device calls that failed.
        self._epoch = 0
        self._params: dict[str, Any] = {}
        self._free = list(range(slots))
        self._waiting: collections.deque[_Request] = collections.deque()
        self._running: dict[int, _Request] = {}
        self._loop_task: asyncio.Task | None = None

    @property
    def traces(self) -> int:
        """Device programs traced so far."""
        return self._program.traces

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
            if parent._set == session._set and parent._slot is not None:
                session._slot, parent._slot = parent._slot, None
                session._cached = parent._cached
                session._epoch = parent._epoch
            parent.close()
        return session

    async def publish(self, params: Mapping[str, Any], version: int) -> None:
        self.set_params(params, version)

    def set_params(self, params: Mapping[str, Any], version: int) -> None:
        """`publish` for callers outside an event loop."""
        self._params = {
            # A copy: the learner's next update consumes its own buffers.
            name: jax.device_put(self._program.narrow(params[name]), self._program.params_at)
            for name in set(self._role_sets.values())
        }
        self.version = version
        self._epoch += 1

    def warm_up(self) -> None:
        """Compiles every program; needs parameters (`set_params`)."""
        idle = np.zeros(self._slots, np.int32)
        for chunk in self._chunks:
            tokens = np.zeros((self._slots, chunk), np.int32)
            keys = np.zeros((self._slots, 2), np.uint32)
            for params in self._params.values():
                self._call(params, tokens, idle, idle, idle, keys, np.ones(self._slots, np.float32))

    def _submit(self, request: _Request) -> asyncio.Future:
        self._waiting.append(request)
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.get_running_loop().create_task(self._run())
        return request.future

    def _release(self, session: NativeSession) -> None:
        if session._slot is not None:
            self._free.append(session._slot)
            abandoned = self._running.pop(session._slot, None)
            if abandoned is not None:
                abandoned.future.cancel()
            session._slot = None

    async def _run(self) -> None:
        """Dispatches until no request is left. A failure reaches every caller that waits."""
        try:
            while True:
                # Everyone woken by the last dispatch first gets to its next request, so that one
                # dispatch serves all; three rounds also pass through a task or a wait_for.
                for _ in range(3):
                    await asyncio.sleep(0)
                self._admit()
                if not self._running:
                    if not self._waiting:
                        return
                    # Every slot is held by a session between two turns.
                    await asyncio.sleep(0.001)
                    continue
                for set_name in sorted({r.session._set for r in self._running.values()}):
                    self._dispatch(set_name)
        except Exception as error:
            for request in [*self._running.values(), *self._waiting]:
                if not request.future.done():
                    request.future.set_exception(error)
            self._running.clear()
            self._waiting.clear()
            # The cache was donated to the call that failed.
            self._cache = self._program.empty_cache()
            self._epoch += 1

    def _admit(self) -> None:
        """Gives waiting requests the slot of their session, or a free one, in order of arrival."""
        self._running = {s: r for s, r in self._running.items() if not r.future.done()}
        left = collections.deque()
        for request in self._waiting:
            session = request.session
            if session._closed:
                request.future.cancel()
            if request.future.cancelled():
                continue
            if session._slot is None and self._free:
                session._slot = self._free.pop(0)
                session._cached = 0
            if session._slot is None:
                left.append(request)
                continue
            self._running[session._slot] = request
        self._waiting = left

    def _dispatch(self, set_name: str) -> None:
        """Feeds one chunk to every running request of a parameter set and decodes a block."""
        batch = {s: r for s, r in self._running.items() if r.session._set == set_name}
        for session in (r.session for r in batch.values()):
            if session._epoch != self._epoch:
                session._cached, session._epoch = 0, self._epoch
        pending = {s: len(r.session.ids) - r.session._cached for s, r in batch.items()}
        longest = max(pending.values())
        chunk = next((c for c in self._chunks if c >= longest), self._chunks[-1])
        N = self._slots
        tokens = np.zeros((N, chunk), np.int32)
        start, count, budget = (np.zeros(N, np.int32) for _ in range(3))
        keys, temperature = np.zeros((N, 2), np.uint32), np.ones(N, np.float32)
        for slot, request in batch.items():
            session = request.session
            n = min(pending[slot], chunk)
            tokens[slot, :n] = session.ids[session._cached : session._cached + n]
            start[slot], count[slot] = session._cached, n
            keys[slot], temperature[slot] = session._key, request.temperature
            if n == pending[slot]:
                room = self.context_tokens - len(session.ids)
                budget[slot] = min(self._block, request.left, room)
        ids, logprobs, lengths = self._call(
            self._params[set_name], tokens, start, count, budget, keys, temperature
        )
        for slot, request in batch.items():
            self._harvest(slot, request, int(count[slot]), ids[slot], logprobs[slot],
                          int(lengths[slot]))

    def _call(self, params, tokens, start, count, budget, keys, temperature):
        host = (tokens, start, count, budget, keys, temperature)
        placed = jax.device_put(host, self._program.by_slot)
        self._cache, *out = self._step(params, self._cache, *placed)
        return jax.device_get(out)

    def _harvest(self, slot, request: _Request, fed: int, ids, logprobs, n: int) -> None:
        session = request.session
        session._cached += fed
        if n:
            new = ids[:n].tolist()
            session.ids.extend(new)
            # The last sampled token has not been fed yet.
            session._cached += n - 1
            request.ids += new
            request.logprobs += logprobs[:n].tolist()
            request.versions += [self.version] * n
            request.left -= n
            self.generated_tokens += n
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
