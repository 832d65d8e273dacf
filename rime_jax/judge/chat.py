"""One question to a server that speaks the OpenAI chat protocol; every way to fail has a name."""

import asyncio
import enum
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from rime_jax.sampler import http

_log = logging.getLogger(__name__)

# A verdict is short; what thinks longer than this is not a judge.
_MAX_BYTES = 1 << 20
_SHOWN = 300


class Failure(enum.StrEnum):
    """Why a question has no answer, or the answer is no verdict."""

    LEFT_OUT = "left_out"  # every server is resting after failures
    NO_CONNECTION = "no_connection"
    CLOSED = "closed"  # the connection broke, or what came over it was not HTTP
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"  # HTTP 429
    SERVER_ERROR = "server_error"  # HTTP 5xx
    REFUSED = "refused"  # any other status: a wrong key, model or address, a text too long
    NO_COMPLETION = "no_completion"  # HTTP 200 without a chat completion
    CUT_OFF = "cut_off"  # the model ran into its limit of tokens
    UNCLOSED_THINK = "unclosed_think"  # from here on: see rubric.parse_verdict
    NOT_JSON = "not_json"
    WRONG_KEYS = "wrong_keys"
    WRONG_VALUE = "wrong_value"


# They say that the server is not well; the others, that it works and what it answers.
SERVER_DOWN = frozenset(
    {Failure.NO_CONNECTION, Failure.CLOSED, Failure.TIMEOUT, Failure.SERVER_ERROR})


class ChatClient:
    """Asks for completions at temperature 0 and, where the server can, in a given JSON schema.

    A server that refuses one of the two (a reasoning model of OpenAI refuses the temperature) is
    asked without it from then on.
    """

    def __init__(
        self, model: str, response_format: Mapping[str, Any], timeout_s: float, api_key: str | None
    ):
        """Args:
          model: its name at the servers.
          response_format: as in the protocol.
          timeout_s: seconds from the first byte sent to the last one received.
          api_key: sent as a bearer token.
        """
        self._model = model
        self._options = {"temperature": 0, "response_format": dict(response_format)}
        self._refused: dict[str, frozenset[str]] = {}
        self._timeout_s = timeout_s
        self._http = http.client(
            {"Authorization": f"Bearer {api_key}"} if api_key else None, proxies=True)

    async def ask(self, url: str, messages: Sequence[Mapping[str, str]]) -> str | Failure:
        """The text of the reply, or why there is none.

        Args:
          url: the server's base, such as http://127.0.0.1:8000/v1.
          messages: of the chat.
        """
        try:
            # Around the whole: the client's own limits are for each read, and a server that
            # sends byte after byte would never reach them.
            async with asyncio.timeout(self._timeout_s):
                status, body = await self._post_what_it_takes(url, messages)
        except TimeoutError:
            return Failure.TIMEOUT
        except httpx2.ConnectError as error:
            return _failed(Failure.NO_CONNECTION, url, repr(error))
        except httpx2.HTTPError as error:
            return _failed(Failure.CLOSED, url, repr(error))
        if status == 200:
            return _read(body)
        if status == 429:
            return Failure.RATE_LIMITED
        failure = Failure.SERVER_ERROR if status >= 500 else Failure.REFUSED
        return _failed(failure, url, f"HTTP {status}: {body[:_SHOWN].decode(errors='replace')}")

    async def _post_what_it_takes(
        self, url: str, messages: Sequence[Mapping[str, str]]
    ) -> tuple[int, bytes]:
        """Posts with fewer options until the server does not refuse; remembers what it takes."""
        refused = self._refused.get(url, frozenset())
        while True:
            options = {k: v for k, v in self._options.items() if k not in refused}
            status, body = await self._post(
                url, {"model": self._model, "messages": list(messages), **options})
            if status not in (400, 422) or not options:
                break
            named = {name for name in options if name.encode() in body}
            # A refusal in other words is most likely about the newer part of the protocol.
            refused |= named or {"response_format"} & options.keys() or options.keys()
        if status == 200 and refused != self._refused.get(url, frozenset()):
            _log.warning("%s takes no %s; it is asked without", url, " and no ".join(refused))
            self._refused[url] = refused
        return status, body

    async def _post(self, url: str, fields: Mapping[str, Any]) -> tuple[int, bytes]:
        address = f"{url.rstrip('/')}/chat/completions"
        async with self._http.stream("POST", address, json=fields) as response:
            return response.status_code, await http.beginning(response, _MAX_BYTES)


def _read(body: bytes) -> str | Failure:
    """The text of a completion."""
    try:
        choice = json.loads(body)["choices"][0]
        text, finish = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Failure.NO_COMPLETION
    if finish == "length":
        return Failure.CUT_OFF
    return text if isinstance(text, str) else Failure.NO_COMPLETION


def _failed(failure: Failure, url: str, detail: str) -> Failure:
    _log.info("%s at %s: %s", failure, url, detail)
    return failure
