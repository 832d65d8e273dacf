"""A judge server that behaves as it is told, badly above all; and chat servers in this process."""

import asyncio
import contextlib
import json
import threading

from rime_jax.judge import chat_server

FULL_MARKS = '{"discoveries": 2, "corrections": 2, "leads": 2, "non_redundant": 2}'


def http(status, body):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Any\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def reply(text, finish="stop"):
    message = {"role": "assistant", "content": text}
    return http(200, {"choices": [{"index": 0, "message": message, "finish_reason": finish}]})


# Behaviour → what is sent before the connection is closed. Those not here: `Stub._misbehave`.
ANSWERS = {
    "fine": reply(FULL_MARKS),
    "closes": b"",
    "half": reply(FULL_MARKS)[:-20],
    "no_http": b"\x00\xff\x00 not HTTP at all\r\n\r\n",
    "error_500": http(500, b"<html>oops"),
    "error_503": http(503, {"error": {"message": "overloaded"}}),
    "busy": http(429, {"error": {"message": "slow down"}}),
    "forbidden": http(403, {"error": {"message": "wrong key"}}),
    "moved": http(302, b""),
    "empty": http(200, b""),
    "no_choices": http(200, {"choices": []}),
    "nested": http(200, b"[" * 100_000),
    "no_text": reply(None),
    "cut_off": reply(FULL_MARKS[:30], "length"),
    "chatty": reply("Sure! I give it " + FULL_MARKS),
    "thinks_on": reply("<think>hm " + FULL_MARKS),
    "other_keys": reply('{"score": 1.0}'),
    "out_of_range": reply(FULL_MARKS.replace("2", "9", 1)),
    "fraction": reply(FULL_MARKS.replace("2", "1.5", 1)),
}


class Stub:
    """Answers each request by `behave(request body as a dict)`; one of ANSWERS, or `hangs`,
    `drips` (a byte now and then) or `floods` (without end).

    Attributes:
      requests: the bodies received, with the headers under `headers`.
    """

    def __init__(self, behave):
        self.requests = []
        self._behave = behave

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        self._tasks = set()
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            headers = dict(
                line.split(": ", 1) for line in head.lower().split("\r\n")[1:] if ": " in line)
            if head.startswith("GET"):
                writer.write(http(404, b""))
            else:
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.requests.append(body | {"headers": headers})
                await self._answer(self._behave(body), writer)
            await writer.drain()
        writer.close()

    async def _answer(self, how, writer):
        if isinstance(how, bytes):
            writer.write(how)
        elif how in ANSWERS:
            writer.write(ANSWERS[how])
        elif how == "floods":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                await writer.drain()
        else:
            assert how in ("hangs", "drips"), how
            for byte in ANSWERS["fine"]:
                if how == "drips":
                    writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
            await asyncio.sleep(3600)


@contextlib.contextmanager
def stub_in_thread(behave):
    """A `Stub` for programs that run an event loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    stub = Stub(behave)
    run(stub.__aenter__())
    try:
        yield stub
    finally:
        run(stub.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.asynccontextmanager
async def chat_server_of(answer, model="a-judge"):
    """The base URL of a real `ChatServer`."""
    server = chat_server.ChatServer(answer, model, "127.0.0.1", 0, asyncio.get_running_loop())
    server.start()
    try:
        yield server.url
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
