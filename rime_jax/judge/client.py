"""A language model as the judge, asked over the OpenAI chat protocol."""

import asyncio
import collections
import logging
import os
import pathlib
import random
from collections.abc import Sequence

from rime_jax.judge import rubric
from rime_jax.judge.base import Verdict
from rime_jax.judge.cache import VerdictCache, key_of
from rime_jax.judge.chat import SERVER_DOWN, ChatClient, Failure
from rime_jax.judge.servers import Servers

_log = logging.getLogger(__name__)

# Not OPENAI_API_KEY: a key must not reach a server that it was not meant for.
API_KEY_VARIABLE = "RIME_JUDGE_API_KEY"

_MAX_WAIT_S = 30.0


class ServerJudge:
    """See `judge.base.Judge`. A question is tried `retries` times again, on whichever server is
    free by then, after a wait that doubles; what still fails is None and counted by its reason.

    Two equal questions at once are asked once. Verdicts are cached, failures never. An instance
    belongs to the event loop that first uses it.
    """

    def __init__(
        self, urls: Sequence[str], model: str, words: rubric.DomainWords, *, concurrency: int,
        timeout_s: float, retries: int, cache: pathlib.Path | None, wait_s: float = 0.5,
        rest_s: float = 10.0,
    ):
        """Args:
          urls: bases of the servers, such as http://127.0.0.1:8000/v1.
          model: its name at the servers.
          words: of the domain.
          concurrency: questions under way at a time; the others wait, without limit.
          timeout_s: seconds that one request may take.
          retries: requests after the first.
          cache: directory of the verdicts; None: they are not kept.
          wait_s: seconds before the first retry.
          rest_s: seconds that a failing server is left out.
        """
        self._servers = Servers(urls, rest_s)
        self._chat = ChatClient(
            model, rubric.RESPONSE_FORMAT, timeout_s, os.environ.get(API_KEY_VARIABLE))
        self._model, self._words = model, words
        self._free = asyncio.Semaphore(concurrency)
        self._retries, self._wait_s = retries, wait_s
        self._cache = VerdictCache(cache) if cache else None
        self._pending: dict[str, asyncio.Task[Verdict | Failure]] = {}
        self._counts = self._zeros()

    async def score(self, before: str, after: str) -> Verdict | None:
        messages = rubric.prompt(before, after, self._words)
        key = key_of(self._model, messages)
        known = self._cache.get(key) if self._cache else None
        if known is not None:
            self._counts["verdicts/cached"] += 1
            return known
        shared = key in self._pending
        if not shared:
            self._pending[key] = asyncio.create_task(self._ask(key, messages))
            self._pending[key].add_done_callback(lambda _: self._pending.pop(key))
        # Shielded: whoever gives up waiting must not take the answer from the others.
        answer = await asyncio.shield(self._pending[key])
        if isinstance(answer, Verdict):
            self._counts["verdicts/cached" if shared else "verdicts/answered"] += 1
            return answer
        self._counts[f"verdicts/{answer}"] += 1
        return None

    def metrics(self) -> dict[str, float]:
        """`verdicts/…`: how each call of `score` ended; `requests/…`: how each request did."""
        found = {f"judge/{name}": float(n) for name, n in self._counts.items()}
        lost = {n: c for n, c in self._counts.items() if c and n.partition("/")[2] in set(Failure)}
        if lost:
            _log.warning("the judge failed: %s", lost)
        self._counts = self._zeros()
        return found

    async def _ask(self, key: str, messages: list[dict[str, str]]) -> Verdict | Failure:
        async with self._free:
            for attempt in range(self._retries + 1):
                if attempt:
                    # At random, so that those who failed together do not come back together.
                    wait = self._wait_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
                    await asyncio.sleep(min(wait, _MAX_WAIT_S))
                answer = await self._request(messages)
                self._counts[
                    f"requests/{'answered' if isinstance(answer, Verdict) else answer}"] += 1
                if isinstance(answer, Verdict):
                    self._keep(key, answer)
                if isinstance(answer, Verdict) or answer is Failure.REFUSED:
                    break
            return answer

    async def _request(self, messages: list[dict[str, str]]) -> Verdict | Failure:
        server = self._servers.take()
        if server is None:
            return Failure.LEFT_OUT
        worked = False
        try:
            reply = await self._chat.ask(server.url, messages)
            # By type first: a reply may spell a failure's name.
            worked = not isinstance(reply, Failure) or reply not in SERVER_DOWN
        finally:
            self._servers.give_back(server, worked)
        if isinstance(reply, Failure):
            return reply
        verdict = rubric.parse_verdict(reply)
        return verdict if isinstance(verdict, Verdict) else Failure(verdict)

    def _keep(self, key: str, verdict: Verdict) -> None:
        if self._cache:
            try:
                self._cache.put(key, verdict)
            except OSError as error:
                _log.warning("a verdict could not be cached: %s", error)

    @staticmethod
    def _zeros() -> collections.Counter[str]:
        """Every name, so that each has its curve from the first step on."""
        return collections.Counter(
            dict.fromkeys((f"{kind}/{how}" for kind, ways in (
                ("verdicts", ("answered", "cached", *Failure)),
                ("requests", ("answered", *Failure)),
            ) for how in ways), 0))
