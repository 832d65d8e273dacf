"""A small HTTP server that behaves like vLLM's, with a model that is a hash, and with faults."""

import asyncio
import hashlib
import json
import pathlib

VOCABULARY = 50


def _number(*parts):
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big")


def next_token(weights, ids, seed):
    """The token that a model samples behind `ids`, and its log-probability."""
    drawn = _number("token", weights, list(ids), seed)
    return drawn % VOCABULARY, -(_number("p", weights, list(ids)) % 1000) / 250


def prompt_logprobs(weights, ids):
    """Log-probabilities of ids[1:]."""
    return [-(_number("prompt", weights, list(ids[: i + 1])) % 1000) / 100
            for i in range(1, len(ids))]


def generated(weights, ids, seed, max_tokens, stop_ids):
    """What an undisturbed server answers: (ids, log-probabilities)."""
    out, logprobs = [], []
    while len(out) < max_tokens and not (out and out[-1] in stop_ids):
        token, logprob = next_token(weights, [*ids, *out], seed)
        out.append(token)
        logprobs.append(logprob)
    return out, logprobs


class Stub:
    """One server. `fault(path)` → None, `500`, `400`, `close`, `garbage`, `half` (of a JSON text),
    `nested` (JSON), `floods` (without end), `drips` (a byte now and then) or `hang`.

    Attributes:
      spoil: changes the choice of an answer before it is sent.
      calls, bodies: paths asked for, and what came with them, in order.
      label, weights: what it holds.
      step_s: seconds for each token.
    """

    def __init__(self, fault=lambda path: None, admitted=512, step_s=0.0, load=None):
        self.fault, self.admitted, self.step_s = fault, admitted, step_s
        self.calls, self.bodies = [], []
        self.port = 0
        self.spoil = lambda choice: None
        self._load = load or (
            lambda directory: (pathlib.Path(directory) / "weights").read_text())
        self._server = None
        self._connections = set()

    @property
    def generations(self):
        """Bodies of the requests that sample."""
        return [b for b in self.bodies if b and "seed" in b.get("sampling_params", ())]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def start(self):
        """As a process does: with weights and label of its own; on its former port."""
        self.weights, self.label = "its own", "default"
        self._running = asyncio.Event()
        self._running.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def die(self):
        """As a killed process does: connections break."""
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._connections.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split(" ", 2)
            length = next((int(line.split(":")[1]) for line in head.splitlines()
                           if line.lower().startswith("content-length:")), 0)
            body = json.loads(await reader.readexactly(length)) if length else None
            path = target.split("?")[0]
            self.calls.append(path)
            self.bodies.append(body)
            fault = self.fault(path)
            if fault == "close":
                return
            if fault == "hang":
                await reader.read()  # until the other side hangs up
                return
            status, answer = 200, b"<html>"
            if fault in ("400", "500"):
                status = int(fault)
            elif fault != "garbage":
                status, answer = await self._answer(path, target, body)
            if fault == "nested":
                answer = b"[" * 100_000
            if fault == "floods":
                writer.write(b"HTTP/1.1 200 x\r\n\r\n")
                while True:
                    writer.write(b" " * 0x10000)
                    await writer.drain()
            if fault == "half":
                answer = answer[: len(answer) // 2]
            writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                         % (status, len(answer)))
            for i in range(len(answer) if fault == "drips" else 0):
                writer.write(answer[i : i + 1])
                await asyncio.sleep(0.02)
            writer.write(b"" if fault == "drips" else answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, path, target, body):
        if path == "/inference/v1/generate":
            return 200, json.dumps(await self._generate(body)).encode()
        if path == "/collective_rpc":
            self.weights = self._load(body["kwargs"]["directory"])
        elif path == "/update_weight_version":
            self.label = body["new_version"]
        elif path == "/pause":
            assert target.endswith("mode=keep")
            self._running.clear()
        elif path == "/resume":
            self._running.set()
        answers = {
            "/weight_info": {"weight_version": self.label},
            "/v1/models": {"data": [{"max_model_len": self.admitted}]},
            "/reset_prefix_cache": {"success": True},
        }
        known = {"/health", "/collective_rpc", "/update_weight_version", "/pause", "/resume"}
        if path not in answers and path not in known:
            return 404, b"{}"
        return 200, json.dumps(answers.get(path)).encode()

    async def _generate(self, body):
        ids, sampling = body["token_ids"], body["sampling_params"]
        choice = {"token_ids": [], "weight_versions": [], "finish_reason": "length",
                  "logprobs": {"content": []}}
        scores = None
        if "prompt_logprobs" in sampling:
            scores = [None, *({str(i): {"logprob": p}} for i, p in zip(
                ids[1:], prompt_logprobs(self.weights, ids), strict=True))]
        else:
            out = choice["token_ids"]
            while len(out) < sampling["max_tokens"]:
                await asyncio.sleep(self.step_s)
                await self._running.wait()
                token, logprob = next_token(self.weights, [*ids, *out], sampling["seed"])
                choice["weight_versions"].append(
                    {"version": self.label, "start": len(out), "end": len(out) + 1})
                choice["logprobs"]["content"].append({"token_id": token, "logprob": logprob})
                out.append(token)
                if token in sampling["stop_token_ids"]:
                    choice["finish_reason"] = "stop"
                    break
            self.spoil(choice)
        return {"choices": [choice], "prompt_logprobs": scores}
