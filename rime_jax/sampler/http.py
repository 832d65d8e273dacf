"""JSON over HTTP, with the two ways in which a server can fail told apart."""

import asyncio
import contextlib
import json
from typing import Any

import httpx2

# Answers that say `not now` rather than `never`.
_LATER = (408, 409, 425, 429)
_SHOWN = 500
# More than any answer that is waited for; what sends without end must not fill the memory.
_MAX_BYTES = 1 << 28


class Unavailable(Exception):
    """A server that cannot be reached, is broken or busy; the request may be sent again.

    Attributes:
      retry_after_s: seconds that the server asks to wait; None if it does not say.
    """

    def __init__(self, message: str, retry_after_s: float | None = None):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """A server that rejects the request itself; sending it again changes nothing."""


def client(headers: dict[str, str] | None = None, proxies: bool = False) -> httpx2.AsyncClient:
    """A client without limits of its own.

    Args:
      headers: of every request.
      proxies: go through the proxies that the environment names.
    """
    return httpx2.AsyncClient(
        headers=headers, timeout=None, trust_env=proxies,
        # A connection for each request: one that a server just closed for being idle would look
        # like a server that died.
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    )


async def call(
    http: httpx2.AsyncClient, method: str, url: str, body: Any = None, *, timeout_s: float
) -> Any:
    """The JSON of an answer; None where it is empty.

    Raises:
      Unavailable: no answer within `timeout_s`, one of status 5xx, 408, 409, 425 or 429, one that
        is no JSON, or one without end.
      Refused: any other status that is not 2xx.
    """
    try:
        # Around the whole: the client's own limits are for each read.
        async with asyncio.timeout(timeout_s):
            async with http.stream(method, url, json=body) as answer:
                content = await beginning(answer, _MAX_BYTES)
    except (httpx2.HTTPError, TimeoutError) as error:
        raise Unavailable(f"{method} {url}: {type(error).__name__} {error}".rstrip()) from error
    shown = content[:_SHOWN].decode(errors="replace")
    said = f"{method} {url}: status {answer.status_code}: {shown}"
    if answer.status_code >= 500 or answer.status_code in _LATER:
        raise Unavailable(said, _seconds(answer.headers.get("retry-after")))
    if not answer.is_success:
        raise Refused(said)
    if not content:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"{method} {url}: no JSON: {shown}") from error


async def beginning(answer: httpx2.Response, most: int) -> bytes:
    """A streamed answer's content; of one that is longer than `most` bytes, somewhat more."""
    content = bytearray()
    async with contextlib.aclosing(answer.aiter_bytes()) as pieces:
        async for piece in pieces:
            content += piece
            if len(content) > most:
                break
    return bytes(content)


def _seconds(retry_after: str | None) -> float | None:
    """The header as a number; its other form, a date, is left to the caller's own back-off."""
    try:
        return max(float(retry_after), 0.0)
    except (TypeError, ValueError):
        return None
