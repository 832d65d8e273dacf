"""The generations that a sampler works on: each within a limit of time, all ended by `close`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class InProgress:
    """Generations in progress.

    Attributes:
      closed: no more begin.
    """

    def __init__(self, limit_s: float):
        """`limit_s`: seconds of one generation; 0: no limit."""
        self.closed = False
        self._limit_s = limit_s
        self._timeouts: set[asyncio.Timeout] = set()

    @contextlib.asynccontextmanager
    async def generation(self) -> AsyncIterator[None]:
        """Around all of one generation, its waiting included; cancels what is awaited inside.

        Raises:
          RuntimeError: the sampler is closed, or was while the generation went on.
          TimeoutError: it took longer than the limit.
        """
        if self.closed:
            raise RuntimeError("generate on a closed sampler; make a new one")
        timeout = asyncio.timeout(self._limit_s or None)
        try:
            async with timeout:
                self._timeouts.add(timeout)
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            if self.closed:
                raise RuntimeError("the sampler was closed during a generation") from error
            raise TimeoutError(
                f"a generation took longer than sampler.generation_s = {self._limit_s:g}; raise "
                "it, or look for what is slow") from error
        finally:
            self._timeouts.discard(timeout)

    def close(self) -> None:
        """Ends every generation, at the next turn of the event loop that they run in."""
        self.closed = True
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(0.0)
