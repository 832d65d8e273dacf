"""Evaluation of a model behind a chat service: the OpenAI protocol, by URL.

For evaluation only: there are no log-probabilities and no weights to publish. Replies are not
deterministic. Tokens are counted as the service reports them, and capped.
"""

import asyncio
import dataclasses
import logging
import os
import random
from collections.abc import Sequence
from typing import Any

from rime_jax.sampler import base, http
from rime_jax.sampler.http import Refused, Unavailable
from rime_jax.sampler.in_progress import InProgress
from rime_jax.sampler.messages import Message, MessageTokens

_log = logging.getLogger(__name__)

# Not OPENAI_API_KEY: a key must not reach a service that it was not meant for.
API_KEY_VARIABLE = "RIME_SAMPLER_API_KEY"

_ATTEMPTS = 6
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
# The limit of a reply, by its present and its former name.
_LIMITS = ("max_completion_tokens", "max_tokens")


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a service answered.

    Attributes:
      ended: the model ended it itself; a limit did not.
      prompt, tokens: of the conversation and of the reply, as the service counts; None if it does
        not say.
    """

    text: str
    ended: bool
    prompt: int | None
    tokens: int | None


class OpenAISession:
    """See `sampler.base.Session`. Ids are those of `MessageTokens`."""

    def __init__(self, sampler: "OpenAISampler", ids: list[int]):
        self.ids = ids
        self._sampler = sampler
        self._closed = False

    def extend(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)

    async def generate(self, max_new_tokens: int, temperature: float = 1.0) -> base.Generation:
        """See `sampler.base.Session`; log-probabilities are all 0. The limit holds for the
        service's tokens and for the local ones: a reply that is longer in these is cut.

        Raises:
          RuntimeError: the session is closed.
          TimeoutError: it took longer than `sampler.generation_s`.
          SamplerStop: the tokens that may be spent do not suffice.
          Unavailable, Refused: the service does not answer, or rejects the request.
        """
        if self._closed:
            raise RuntimeError("generate on a closed session; open a new one")
        sampler = self._sampler
        room = sampler.context_tokens - len(self.ids)
        if room < 1:
            return base.Generation([], [], [], "context")
        if max_new_tokens < 1:
            return base.Generation([], [], [], "length")
        limit = min(max_new_tokens, room)
        async with sampler.in_progress.generation():
            reply = await sampler.reply(self.ids, limit, temperature)
        whole = sampler.chat.text(reply.text)
        if reply.ended:
            whole.append(sampler.chat.end_of_turn)
        ids = whole[:limit]
        self.ids.extend(ids)
        sampler.generated_tokens += len(ids)
        finish: base.Finish
        if reply.ended and len(whole) <= limit:
            finish = "stop"
        else:
            finish = "length" if limit == max_new_tokens else "context"
        return base.Generation(ids, [0.0] * len(ids), [sampler.version] * len(ids), finish)

    def close(self) -> None:
        self._closed = True


class OpenAISampler:
    """See `sampler.base.Sampler`.

    Attributes:
      chat: encodes the conversations.
      version: of the last publish; the service's own weights have none.
      generated_tokens: since the start, in local tokens.
      in_progress: its generations.
      prompt_tokens, reply_tokens: spent since the start, as the service counts.
      publish_s: 0.
    """

    publish_s = 0.0

    def __init__(
        self, chat: MessageTokens, *, url: str, model: str, context_tokens: int, requests: int,
        token_cap: int, request_s: float, generation_s: float = 0.0,
    ):
        """Args:
          url: the service's base, such as http://127.0.0.1:8000/v1.
          model: its name there.
          context_tokens: local tokens of one session.
          requests: at a time; further ones wait.
          token_cap: tokens of prompts and replies after which nothing more is asked.
          request_s: seconds for one answer.
          generation_s: seconds of one generation, with all its requests and waiting; 0: no limit.
        """
        self.chat = chat
        self.context_tokens = context_tokens
        self.version = -1
        self.generated_tokens = self.prompt_tokens = self.reply_tokens = 0
        self._url, self._model = url.rstrip("/") + "/chat/completions", model
        self._free = asyncio.Semaphore(requests)
        self._cap, self._reserved, self._room = token_cap, 0, asyncio.Condition()
        self._request_s = request_s
        self.in_progress = InProgress(generation_s)
        self._limit_name = _LIMITS[0]
        self._retries = 0
        key = os.environ.get(API_KEY_VARIABLE)
        self._http = http.client({"Authorization": f"Bearer {key}"} if key else None, proxies=True)

    def open(
        self, role: str, ids: Sequence[int], seed: Sequence[int],
        parent: OpenAISession | None = None,
    ) -> OpenAISession:
        if parent is not None:
            if list(ids[: len(parent.ids)]) != parent.ids:
                raise ValueError("the parent's ids are not a prefix of the new session's")
            parent.close()
        return OpenAISession(self, list(ids))

    async def publish(self, params: Any, version: int) -> None:
        """Notes the version; the service keeps its weights."""
        self.version = version

    def warm_up(self) -> None:
        """Nothing to do."""

    def metrics(self) -> dict[str, float]:
        """Tokens spent since the start (`sampler/prompt_tokens`, `sampler/reply_tokens`), and
        `sampler/retries` since the last call."""
        retries, self._retries = self._retries, 0
        return {
            "sampler/prompt_tokens": float(self.prompt_tokens),
            "sampler/reply_tokens": float(self.reply_tokens),
            "sampler/retries": float(retries),
        }

    async def close(self) -> None:
        self.in_progress.close()
        await self._http.aclose()

    async def reply(self, ids: Sequence[int], limit: int, temperature: float) -> Reply:
        """The service's next message in a conversation; raises as `OpenAISession.generate`."""
        estimate = len(ids) + limit
        async with self._free:
            await self._reserve(estimate)
            try:
                reply = await self._ask(self.chat.messages(ids), limit, temperature)
                self.prompt_tokens += len(ids) if reply.prompt is None else reply.prompt
                self.reply_tokens += limit if reply.tokens is None else reply.tokens
                return reply
            finally:
                async with self._room:
                    self._reserved -= estimate
                    self._room.notify_all()

    async def _reserve(self, tokens: int) -> None:
        """Sets tokens aside for a request, once those under way leave room for it."""
        async with self._room:
            while self.prompt_tokens + self.reply_tokens + self._reserved + tokens > self._cap:
                if not self._reserved:
                    raise base.SamplerStop(
                        f"{self.prompt_tokens} tokens of prompts and {self.reply_tokens} of replies"
                        f" are spent, and the next request may take {tokens}: more than "
                        f"sampler.openai_tokens = {self._cap}. Raise it, or lower eval.streams and "
                        "eval.rollouts, and start again")
                await self._room.wait()
            self._reserved += tokens

    async def _ask(self, messages: list[Message], limit: int, temperature: float) -> Reply:
        wait_s = _FIRST_WAIT_S
        for attempt in range(_ATTEMPTS):
            try:
                return _read(await self._post(messages, limit, temperature))
            except Unavailable as error:
                last = error
            _log.info("attempt %d: %s", attempt + 1, last)
            self._retries += 1
            # At random, so that those who failed together do not come back together.
            asked = last.retry_after_s
            await asyncio.sleep(min(wait_s * random.uniform(0.5, 1.5) if asked is None else asked,
                                    _LONGEST_WAIT_S))
            wait_s *= 2
        raise last

    async def _post(self, messages: list[Message], limit: int, temperature: float) -> Any:
        """Services know the limit by its present name, its former one, or both."""
        body = {"model": self._model, "messages": messages, "temperature": temperature}
        name = self._limit_name
        try:
            return await self._call(body | {name: limit})
        except Refused as error:
            if name == _LIMITS[1] or name not in str(error):
                raise
        self._limit_name = _LIMITS[1]
        return await self._call(body | {_LIMITS[1]: limit})

    async def _call(self, body: dict[str, Any]) -> Any:
        return await http.call(self._http, "POST", self._url, body, timeout_s=self._request_s)


def _read(found: Any) -> Reply:
    """Raises Unavailable where a whole reply is not there."""
    try:
        choice, usage = found["choices"][0], found.get("usage") or {}
        text = choice["message"]["content"] or ""
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        if not isinstance(text, str) or any(
                n is not None and (type(n) is not int or n < 0) for n in counts):
            raise TypeError("wrong types")
        return Reply(text, choice.get("finish_reason") != "length", *counts)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise Unavailable(f"no chat completion: {str(found)[:300]}") from error
