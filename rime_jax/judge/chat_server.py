"""The server's side of the OpenAI chat protocol, as much of it as a judge needs.

`POST /v1/chat/completions`, `GET /v1/models`, `GET /health`. HTTP is the standard library's, with a
thread for each connection; the answers are made on one event loop.
"""

import asyncio
import concurrent.futures
import dataclasses
import http.server
import json
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from rime_jax.judge import forms

_log = logging.getLogger(__name__)

_MAX_BYTES = 16 << 20
_IDLE_S = 60.0


@dataclasses.dataclass(frozen=True)
class Question:
    """A request for a completion.

    Attributes:
      messages: role and content of each.
      temperature: of sampling.
      max_tokens: of the reply; None: as the server sees fit.
      form: that the reply must have; None: any text.
    """

    messages: list[dict[str, str]]
    temperature: float
    max_tokens: int | None
    form: forms.Form | None


@dataclasses.dataclass(frozen=True)
class Completion:
    """A reply.

    Attributes:
      text: of the reply.
      finish: `stop` (it is whole) or `length` (it ran into a limit).
      prompt_tokens, tokens: of the question and of the reply.
    """

    text: str
    finish: Literal["stop", "length"]
    prompt_tokens: int
    tokens: int


class Refusal(Exception):
    """A request that cannot be answered as it is; the message says why, naming the field."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


Answer = Callable[[Question], Coroutine[Any, Any, Completion]]


class ChatServer(http.server.ThreadingHTTPServer):
    """Serves one model until `shutdown`; `serve_forever` blocks its thread.

    Attributes:
      url: base of the protocol, as a client needs it.
    """

    daemon_threads = True
    # Connections that wait to be accepted: a training opens many at once.
    request_queue_size = 512

    def __init__(
        self, answer: Answer, model: str, host: str, port: int, loop: asyncio.AbstractEventLoop
    ):
        """Args:
          answer: makes the completions; raises Refusal for what it cannot answer.
          model: the name that requests must give.
          host, port: where to listen; port 0: any free one.
          loop: runs the answers.

        Raises:
          OSError: the port is taken, or the host is not this machine's.
        """
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.answer, self.model, self.loop = answer, model, loop
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_port}/v1"

    def start(self) -> None:
        """Serves in a thread of its own."""
        threading.Thread(
            target=self.serve_forever, args=(0.05,), daemon=True, name="chat-server"
        ).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.info("a connection from %s broke", client_address, exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: ChatServer

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, {"status": "ok"})
        elif self.path == "/v1/models":
            entry = {"id": self.server.model, "object": "model", "created": 0,
                     "owned_by": "rime_jax"}
            self._send(200, {"object": "list", "data": [entry]})
        else:
            self._send_error(404, f"no such path: {self.path}")

    def do_POST(self) -> None:
        try:
            fields = self._read_fields()
            if self.path != "/v1/chat/completions":
                raise Refusal(f"no such path: {self.path}", 404)
            completion = self._complete(_question(fields, self.server.model))
        except Refusal as refusal:
            self._send_error(refusal.status, str(refusal))
        except Exception as error:
            _log.exception("a question was not answered")
            self._send_error(500, f"{type(error).__name__}: {error}")
        else:
            self._send(200, _completion_fields(completion, self.server.model))

    def _complete(self, question: Question) -> Completion:
        made = asyncio.run_coroutine_threadsafe(self.server.answer(question), self.server.loop)
        try:
            return made.result()
        except concurrent.futures.CancelledError:
            raise Refusal("the server is stopping", 503) from None

    def _read_fields(self) -> dict[str, Any]:
        """The body; one that is not read leaves the connection unusable."""
        self.close_connection = True
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise Refusal("send a JSON body with its Content-Length", 411)
        if len(length) > 20 or int(length) > _MAX_BYTES:
            raise Refusal(f"the body is longer than {_MAX_BYTES} bytes", 413)
        body = self.rfile.read(int(length))
        self.close_connection = self.headers.get("Connection", "").lower() == "close"
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            raise Refusal("the body is not JSON") from None
        if not isinstance(fields, dict):
            raise Refusal("the body is not a JSON object")
        return fields

    def _send(self, status: int, fields: dict[str, Any]) -> None:
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _send_error(self, status: int, message: str) -> None:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self._send(status, {"error": {
            "message": message, "type": kind, "param": None, "code": status}})

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def _question(fields: dict[str, Any], model: str) -> Question:
    """Checks the fields of a request.

    Raises:
      Refusal: a field is missing, wrong, or asks for what is not served.
    """
    if fields.get("model") != model:
        raise Refusal(f"model {fields.get('model')!r} is not served here; ask for {model!r}", 404)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str)
        and isinstance(m.get("content"), str) for m in messages
    ):
        raise Refusal("messages must be a list of objects with role and content, both texts")
    for name in ("stream", "tools"):
        if fields.get(name):
            raise Refusal(f"{name} is not served here; leave it out")
    if fields.get("n", 1) != 1:
        raise Refusal("n must be 1")
    temperature = fields.get("temperature", 1.0)
    if type(temperature) not in (int, float) or not 0 <= temperature <= 10:
        raise Refusal("temperature must be a number from 0 to 10")
    limit = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if limit is not None and (type(limit) is not int or limit < 1):
        raise Refusal("max_tokens must be an integer above 0")
    try:
        form = forms.read(fields.get("response_format"))
    except ValueError as error:
        raise Refusal(f"response_format: {error}; leave it out") from error
    messages = [{"role": m["role"], "content": m["content"]} for m in messages]
    return Question(messages, float(temperature), limit, form)


def _completion_fields(completion: Completion, model: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion",
        "created": int(time.time()), "model": model,
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": completion.text},
            "finish_reason": completion.finish,
        }],
        "usage": {
            "prompt_tokens": completion.prompt_tokens, "completion_tokens": completion.tokens,
            "total_tokens": completion.prompt_tokens + completion.tokens,
        },
    }
