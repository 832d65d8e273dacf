"""Which of several servers generates for a session, and which are left out for now."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from rime_jax.sampler.http import Refused, Unavailable
from rime_jax.sampler.vllm_client import VllmServer

_log = logging.getLogger(__name__)

# Seconds between health checks, and how many must fail in a row for a server to be left out.
_HEALTH_S = 5.0
_MISSED = 2
# Seconds before a server that failed is looked at again; doubled for each failure in a row.
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


class Router:
    """Servers with the same weights.

    A server serves only after `prepare` has found it fit. One that fails is left out, looked at
    again with growing waits, and serves again once `prepare` succeeds.
    """

    def __init__(
        self, servers: Sequence[VllmServer], prepare: Callable[[VllmServer], Awaitable[None]],
        patience_s: float,
    ):
        """Args:
          servers: at least one.
          prepare: brings a server's weights up to date and checks them; raises Unavailable or
            Refused where that fails. Called under the server's lock.
          patience_s: how long `pick` waits while no server serves.
        """
        self.servers = tuple(servers)
        self._prepare = prepare
        self._patience_s = patience_s
        self._up: list[VllmServer] = []
        self._any_up = asyncio.Event()
        self._reasons: dict[str, str] = {}
        self._reviving: dict[VllmServer, asyncio.Task] = {}
        # Tasks are kept by nobody else; they end with `close`.
        self._watch: asyncio.Task | None = None

    @property
    def serving(self) -> int:
        """Servers that serve now."""
        return len(self._up)

    @property
    def reasons(self) -> str:
        """Why the others do not."""
        up = {server.url for server in self._up}
        return "; ".join(why for url, why in self._reasons.items() if url not in up)

    async def pick(self, preferred: VllmServer | None = None) -> VllmServer:
        """The preferred server if it serves, else the one with the fewest sessions and requests.

        Raises:
          Unavailable: none has served for `patience_s`.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                while not self._up:
                    await self._any_up.wait()
        except TimeoutError:
            raise Unavailable(
                f"no vLLM server has served for {self._patience_s:g} s ({self.reasons}); start one "
                "with launch/vllm_server.sh at an address of sampler.urls") from None
        if preferred in self._up:
            return preferred
        return min(self._up, key=lambda server: (server.sessions, server.requests))

    def answered(self, server: VllmServer) -> None:
        """Notes that a server generated something."""
        server.failed = 0

    def fail(self, server: VllmServer, error: BaseException) -> None:
        """Leaves a server out until it is fit again."""
        self._reasons[server.url] = str(error)
        if server in self._up:
            self._take_out(server)
            server.failed += 1
            self._leave_out(server, error)

    def hold(self) -> None:
        """Takes every server out: all need new weights."""
        for server in self.servers:
            self._take_out(server)

    async def renew(self) -> list[Exception]:
        """Prepares every server; returns the failures once each serves or has failed."""
        found = await asyncio.gather(*map(self._prepared, self.servers), return_exceptions=True)
        errors: list[Exception] = []
        for server, error in zip(self.servers, found, strict=True):
            if isinstance(error, (Unavailable, Refused)):
                errors.append(error)
                self._leave_out(server, error)
            elif error is not None:
                raise error
        if self._watch is None:
            self._watch = _in_background(self._check_healths())
        return errors

    async def _prepared(self, server: VllmServer) -> None:
        try:
            async with server.lock:
                await self._prepare(server)
        except (Unavailable, Refused) as error:
            server.failed += 1
            self._reasons[server.url] = str(error)
            raise
        if server not in self._up:
            self._up.append(server)
            self._any_up.set()

    async def _revive(self, server: VllmServer) -> None:
        while server not in self._up:
            await asyncio.sleep(
                min(_FIRST_WAIT_S * 2 ** min(server.failed, 16), _LONGEST_WAIT_S))
            if server in self._up:
                return
            try:
                await self._prepared(server)
                _log.warning("%s serves again", server.url)
            except (Unavailable, Refused) as error:
                _log.info("%s does not serve yet: %s", server.url, error)

    async def _check_healths(self) -> None:
        missed = dict.fromkeys(self.servers, 0)
        while True:
            await asyncio.sleep(_HEALTH_S)
            up = list(self._up)
            found = await asyncio.gather(
                *(server.check_health() for server in up), return_exceptions=True)
            for server, error in zip(up, found, strict=True):
                missed[server] = missed[server] + 1 if isinstance(error, Exception) else 0
                if missed[server] == _MISSED:
                    missed[server] = 0
                    self.fail(server, error)
                    # Who waits for it would wait until the request's time is over.
                    server.abandon()

    async def close(self) -> None:
        """Ends what goes on in the background, and all connections."""
        tasks = [t for t in (self._watch, *self._reviving.values()) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self.servers))

    def _take_out(self, server: VllmServer) -> None:
        if server in self._up:
            self._up.remove(server)
        if not self._up:
            self._any_up.clear()

    def _leave_out(self, server: VllmServer, error: BaseException) -> None:
        _log.warning("%s is left out for now: %s", server.url, error)
        if server not in self._reviving or self._reviving[server].done():
            self._reviving[server] = _in_background(self._revive(server))


def _in_background(work: Coroutine) -> asyncio.Task:
    """A task whose unforeseen end is told at once: nobody awaits it."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("vLLM servers are no longer looked after", exc_info=task.exception())
