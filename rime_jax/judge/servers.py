"""Several servers of one judge: which takes the next request, which are left out for a while."""

import dataclasses
import time
from collections.abc import Sequence

# Failures in a row after which a server is left out.
_STRIKES = 3


@dataclasses.dataclass
class Server:
    """One server: how many requests it works on, how many failed in a row, when it is tried next
    (a value of `time.monotonic`; only looked at once it is left out)."""

    url: str
    in_flight: int = 0
    failed: int = 0
    next_trial: float = 0.0


class Servers:
    """A server that failed three times in a row rests, then gets one request at a time to show
    that it is back, and takes its share again after the first success."""

    def __init__(self, urls: Sequence[str], rest_s: float):
        """Args:
          urls: one for each server.
          rest_s: seconds that a server is left out, and between two trials.
        """
        self._servers = [Server(url) for url in urls]
        self._rest_s = rest_s

    def take(self) -> Server | None:
        """The least loaded server, to be given back; None when all are left out."""
        now = time.monotonic()
        up = [s for s in self._servers if s.failed < _STRIKES or now >= s.next_trial]
        if not up:
            return None
        # A trial that is due comes first: the others' load says nothing about when to look again.
        server = min(up, key=lambda s: (s.failed < _STRIKES, s.in_flight))
        server.in_flight += 1
        server.next_trial = now + self._rest_s
        return server

    def give_back(self, server: Server, worked: bool) -> None:
        """Ends a request; `worked`: the server answered, whatever it said."""
        server.in_flight -= 1
        if worked:
            server.failed = 0
        else:
            server.failed += 1
            server.next_trial = time.monotonic() + self._rest_s
