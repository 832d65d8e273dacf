"""Rollouts from vLLM servers: token ids in and out over HTTP, new weights after every update.

A publish writes a model directory that the servers can read and has each of them load it. The
label of a server's weights names the publish; a server returns it with each span of tokens, so that
every token's version is known also where weights changed under a request, or a server was started
again unnoticed. An answer from other weights than the newest is thrown away and asked for again:
a generation is a function of the ids, the seed and the weights, so nothing is lost or doubled.

The seed of a generation derives from its session's seed and its first position. With it vLLM
samples the same tokens again as long as its logits are the same; these vary in their last bits
with what else is in the batch (VLLM_BATCH_INVARIANT=1 on GPUs that have it).
"""

import asyncio
import dataclasses
import functools
import logging
import pathlib
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rime_jax import distributed
from rime_jax.sampler import base
from rime_jax.sampler.http import Refused, Unavailable
from rime_jax.sampler.in_progress import InProgress
from rime_jax.sampler.router import Router
from rime_jax.sampler.vllm_client import VllmServer

_log = logging.getLogger(__name__)

# Failed answers after which one generation is given up.
_ATTEMPTS = 8
# Pushed directories that are kept: a server that comes back may still read the one before.
_KEPT = 2


@dataclasses.dataclass(frozen=True)
class Probe:
    """A prompt whose log-probabilities tell whether a server has the learner's weights.

    Attributes:
      ids: the prompt.
      logprobs: parameters of one set → the learner's log-probabilities of ids[1:].
    """

    ids: Sequence[int]
    logprobs: Callable[[Any], np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Published:
    """What servers are to have.

    Attributes:
      number: publishes before this one.
      label: of the weights, from `_Labels`.
      directories: parameter set → model directory.
      expected: parameter set → the learner's log-probabilities of the probe.
    """

    number: int
    version: int
    label: str
    directories: Mapping[str, pathlib.Path]
    expected: Mapping[str, np.ndarray]


class VllmSession:
    """See `sampler.base.Session`. The cache is the prefix cache of the server it is sent to."""

    def __init__(self, sampler: "VllmSampler", set_name: str, ids: list[int], seed: Sequence[int]):
        self.ids = ids
        self._sampler = sampler
        self._set = set_name
        self._seed = [s & 0xFFFFFFFF for s in seed]
        self._server: VllmServer | None = None
        self._closed = False

    def extend(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)

    async def generate(self, max_new_tokens: int, temperature: float = 1.0) -> base.Generation:
        """See `sampler.base.Session`.

        Raises:
          RuntimeError: the session is closed.
          TimeoutError: it took longer than `sampler.generation_s`.
          Unavailable, Refused: no server could answer, or one rejects the request.
        """
        if self._closed:
            raise RuntimeError("generate on a closed session; open a new one")
        room = self._sampler.context_tokens - len(self.ids)
        if room < 1:
            return base.Generation([], [], [], "context")
        if max_new_tokens < 1:
            return base.Generation([], [], [], "length")
        async with self._sampler._in_progress.generation():
            generation = await self._sampler._generate(
                self, min(max_new_tokens, room), temperature)
        self.ids.extend(generation.ids)
        if generation.finish == "length" and len(generation.ids) < max_new_tokens:
            return dataclasses.replace(generation, finish="context")
        return generation

    def close(self) -> None:
        self._closed = True
        self._move_to(None)

    def _move_to(self, server: VllmServer | None) -> None:
        if self._server is not None:
            self._server.sessions -= 1
        if server is not None:
            server.sessions += 1
        self._server = server

    def _next_seed(self) -> int:
        words = np.random.SeedSequence([*self._seed, len(self.ids)]).generate_state(2, np.uint32)
        return int(words[0]) << 31 ^ int(words[1])


class VllmSampler:
    """See `sampler.base.Sampler`. It belongs to the event loop of its first publish.

    With several processes each uses all servers, and all must publish together; the first one
    writes and loads the weights.

    Attributes:
      version: of the parameters in use.
      generated_tokens: since the start.
      publish_s: seconds of the last publish.
    """

    def __init__(
        self,
        role_sets: Mapping[str, str],
        stop_ids: Sequence[int],
        *,
        urls: Mapping[str, Sequence[str]],
        context_tokens: int,
        export: Callable[[Any, pathlib.Path], None],
        probe: Probe,
        exchange_dir: str,
        gap_limit: float,
        request_s: float,
        generation_s: float = 0.0,
        processes: distributed.Processes = distributed.ALONE,
    ):
        """Args:
          role_sets: role → name of its parameter set.
          stop_ids: ids that end a generation.
          urls: parameter set → its servers.
          context_tokens: tokens of one session.
          export: writes parameters of one set as a model directory; called by all processes.
          probe: see `Probe`.
          exchange_dir: a directory that this program and all servers see; empty: a temporary one,
            for servers on this machine.
          gap_limit: largest mean distance of a server's log-probabilities of the probe from the
            learner's.
          request_s: seconds for one answer, and for waiting while no server serves.
          generation_s: seconds of one generation, with all its requests and waiting; 0: no limit.
          processes: of the run.
        """
        self.context_tokens = context_tokens
        self.version = -1
        self.generated_tokens = 0
        self.publish_s = 0.0
        self._role_sets = dict(role_sets)
        self._stop_ids = tuple(stop_ids)
        self._export = export
        self._probe = probe
        self._gap_limit = gap_limit
        self._routers = {
            name: Router([VllmServer(url, request_s) for url in own],
                         functools.partial(self._prepare, name), request_s)
            for name, own in urls.items()
        }
        self._exchange = pathlib.Path(exchange_dir or tempfile.mkdtemp(prefix="rime-"))
        self._temporary = None if exchange_dir else weakref.finalize(
            self, shutil.rmtree, self._exchange, ignore_errors=True)
        self._in_progress = InProgress(generation_s)
        self._processes = processes
        self._labels: _Labels | None = None
        self._published: _Published | None = None
        self._publishing = asyncio.Lock()
        self._retries = 0
        self._gaps: dict[str, float] = {}

    def open(
        self, role: str, ids: Sequence[int], seed: Sequence[int],
        parent: VllmSession | None = None,
    ) -> VllmSession:
        session = VllmSession(self, self._role_sets[role], list(ids), seed)
        if parent is not None:
            if list(ids[: len(parent.ids)]) != parent.ids:
                raise ValueError("the parent's ids are not a prefix of the new session's")
            if parent._set == session._set:
                session._move_to(parent._server)
            parent.close()
        return session

    async def publish(self, params: Mapping[str, Any], version: int) -> None:
        """See `sampler.base.Sampler`. Generations in progress go on with the new weights.

        Raises:
          SamplerStop: no server can be used: wrong model, too short a context, log-probabilities
            that are not the learner's, or none answers in time.
        """
        began = time.monotonic()
        async with self._publishing:
            published = await asyncio.to_thread(self._write, params, version)
            # New generations wait; from here on an answer from older weights counts as none.
            for router in self._routers.values():
                router.hold()
            self._published, self.version = published, version
            self._gaps.clear()
            # The first process loads the weights; the others look whether they are there.
            for turn in (True, False):
                if self._processes.first == turn:
                    await asyncio.gather(*map(self._renew, self._routers))
                await asyncio.to_thread(self._processes.gather, None)
            if self._processes.first:
                self._remove_old(published)
        self.publish_s = time.monotonic() - began

    def warm_up(self) -> None:
        """Nothing of a server's is compiled from here; `publish` has tried them."""

    def metrics(self) -> dict[str, float]:
        """Since the last call: `sampler/logprob_gap` (mean distance of a server's log-probabilities
        of the probe from the learner's, of the worst server), `sampler/servers` that serve,
        `sampler/retries`."""
        retries, self._retries = self._retries, 0
        return {
            "sampler/logprob_gap": max(self._gaps.values(), default=float("nan")),
            "sampler/servers": float(sum(router.serving for router in self._routers.values())),
            "sampler/retries": float(retries),
        }

    async def close(self) -> None:
        self._in_progress.close()
        await asyncio.gather(*(router.close() for router in self._routers.values()))
        if self._temporary is not None:
            self._temporary()

    async def _generate(
        self, session: VllmSession, max_new_tokens: int, temperature: float
    ) -> base.Generation:
        """One generation, sent again until a server with the newest weights has answered."""
        if self._published is None:
            raise RuntimeError("generate before the first publish")
        router, seed = self._routers[session._set], session._next_seed()
        for attempt in range(_ATTEMPTS):
            server = await router.pick(session._server)
            if server is not session._server:
                session._move_to(server)
            since = self._published.number
            try:
                answer = await server.generate(
                    session.ids, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed,
                    stop_ids=self._stop_ids)
                versions = self._labels.versions(answer.labels, since)
            except Unavailable as error:
                _log.info("attempt %d at a generation: %s", attempt + 1, error)
                last = error
                self._retries += 1
                router.fail(server, error)
                continue
            router.answered(server)
            self.generated_tokens += len(answer.ids)
            stopped = answer.ids[-1] in self._stop_ids
            return base.Generation(
                answer.ids, answer.logprobs, versions, "stop" if stopped else "length")
        raise Unavailable(f"{_ATTEMPTS} attempts at a generation failed; the last: {last}")

    async def _renew(self, name: str) -> None:
        router = self._routers[name]
        errors = await router.renew()
        if not router.serving and all(isinstance(error, Refused) for error in errors):
            raise base.SamplerStop("; ".join(map(str, errors)))
        try:
            await router.pick()
        except Unavailable as error:
            raise base.SamplerStop(f"parameter set {name!r}: {error}") from error

    async def _prepare(self, name: str, server: VllmServer) -> None:
        """Brings one server to the newest weights and compares it with the learner."""
        published = self._published
        await server.check_health()
        admitted = await server.max_tokens()
        if admitted < self.context_tokens:
            raise Refused(f"{server.url} admits {admitted} tokens of the {self.context_tokens} of "
                          "rollout.context_tokens; start it with a larger --max-model-len")
        if await server.label() != published.label:
            if not self._processes.first:
                raise Unavailable(f"{server.url} waits for its weights")
            await server.load(str(published.directories[name]), published.label)
        served = await server.prompt_logprobs(self._probe.ids)
        gap = float(np.abs(np.array(served) - published.expected[name]).mean())
        self._gaps[server.url] = gap
        if not gap <= self._gap_limit:
            raise Refused(
                f"{server.url}: its log-probabilities of a probe prompt are {gap:.3g} from the "
                f"learner's on average (sampler.gap_limit = {self._gap_limit:g}): it serves other "
                "weights or another model. Start it with launch/vllm_server.sh and the model of "
                "model.path, in the dtype of model.dtype; raise the limit only if rounding explains"
                " the distance")
        if published is not self._published:
            raise Unavailable(f"{server.url}: newer weights were published meanwhile")

    def _write(self, params: Mapping[str, Any], version: int) -> _Published:
        """The directories and expectations of a publish; all processes together."""
        if self._labels is None:
            self._labels = _Labels(self._processes.gather(secrets.token_hex(4))[0])
        number = 0 if self._published is None else self._published.number + 1
        label = self._labels.new(number, version)
        names = sorted(self._routers)
        directories = {name: self._exchange / f"{label}.{name}" for name in names}
        expected = {name: self._probe.logprobs(params[name]) for name in names}
        for name, directory in directories.items():
            self._export(params[name], directory)
        self._processes.gather(None)
        return _Published(number, version, label, directories, expected)

    def _remove_old(self, published: _Published) -> None:
        recent = {self._labels.prefix(published.number - back) for back in range(_KEPT)}
        for old in self._exchange.glob(f"{self._labels.run}-*"):
            if not any(old.name.startswith(prefix) for prefix in recent):
                shutil.rmtree(old, ignore_errors=True)


class _Labels:
    """Names of a run's publishes: `<run>-<number>-<version>`."""

    def __init__(self, name: str):
        """`name`: tells this run from others that use the same servers."""
        self.run = f"rime-{name}"

    def prefix(self, number: int) -> str:
        return f"{self.run}-{number}-"

    def new(self, number: int, version: int) -> str:
        return f"{self.prefix(number)}{version}"

    def versions(self, labels: Sequence[str], since: int) -> list[int]:
        """The version of each token.

        Raises:
          Unavailable: one was made by weights that are not of publish `since` or later.
        """
        known: dict[str, int] = {}
        for label in set(labels):
            number, _, version = label.removeprefix(f"{self.run}-").partition("-")
            if not version or not number.isdigit() or int(number) < since:
                raise Unavailable(f"its weights are {label!r}, not those published last")
            known[label] = int(version)
        return [known[label] for label in labels]
