"""Evaluation of a model behind a chat service, against a small HTTP server."""

import asyncio
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from rime_jax import config as config_lib
from rime_jax import evaluate, parts, train
from rime_jax.envs.alchemy import text_compact
from rime_jax.policy import words
from rime_jax.sampler import base, openai
from rime_jax.sampler.http import Refused
from rime_jax.sampler.messages import MessageTokens
from rime_jax.tracking import run_dir

WORDS = [f"w{i}" for i in range(12)]
CHAT = MessageTokens(words.word_tokenizer(WORDS))
TEXT = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(openai, "_FIRST_WAIT_S", 0.001)


class Service:
    """Answers each request by `respond(body, n)` → (status, JSON) or None to hang up."""

    def __init__(self, respond):
        self.respond, self.bodies, self.heads, self.most = respond, [], [], 0
        self._open = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.splitlines()
                      if line.lower().startswith("content-length:"))
        self.bodies.append(json.loads(await reader.readexactly(length)))
        self.heads.append(head)
        self._open += 1
        self.most = max(self.most, self._open)
        await asyncio.sleep(0.002)
        self._open -= 1
        answer = self.respond(self.bodies[-1], len(self.bodies))
        if answer == "half":
            writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 900\r\n\r\n{\"choices\": [{\"mess")
        elif answer == "drips":
            writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 900\r\n\r\n")
            while not reader.at_eof():
                writer.write(b" ")
                await asyncio.sleep(0.02)
        elif answer is not None:
            status, found, *headers = answer
            body = json.dumps(found).encode()
            writer.write("\r\n".join([
                f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", "Connection: close",
                *headers, "", ""]).encode() + body)
            await writer.drain()
        writer.close()


def reply(text, finish="stop", prompt=10, tokens=3):
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": finish}],
                 "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}}


def sampler_of(url, **options):
    settings = dict(url=url, model="m", context_tokens=200, requests=4, token_cap=10_000,
                    request_s=10.0)
    return openai.OpenAISampler(CHAT, **settings | options)


def run(respond, scenario, **options):
    async def whole():
        async with Service(respond) as service:
            return await scenario(sampler_of(service.url, **options), service)

    return asyncio.run(asyncio.wait_for(whole(), 60))


@hypothesis.given(
    system=TEXT, texts=st.lists(TEXT, min_size=1, max_size=5),
    ended=st.lists(st.booleans(), min_size=5, max_size=5))
def test_ids_of_a_conversation_are_its_messages_again(system, texts, ended):
    expected = [{"role": "system", "content": system}, {"role": "user", "content": texts[0]}]
    ids = CHAT.opening(expected)
    for text, end in zip(texts[1:], ended, strict=False):
        ids += CHAT.text(f"w1 {text}") + [CHAT.end_of_turn] * end
        ids += CHAT.turn(text, ids[-1])
        expected += [{"role": "assistant", "content": f"w1 {text}".strip()},
                     {"role": "user", "content": text}]
    assert CHAT.messages(ids) == expected


def test_the_conversation_goes_out_as_messages_and_comes_back_as_ids():
    async def scenario(sampler, service):
        await sampler.publish({}, 7)
        opening = CHAT.opening([{"role": "system", "content": "w1 w2"},
                                {"role": "user", "content": "w3"}])
        session = sampler.open("act", opening, (0,))
        first = await session.generate(20, 0.6)
        assert CHAT.decode(first.ids) == "w4 w5"
        assert first.finish == "stop" and first.ids[-1] == CHAT.end_of_turn
        assert first.versions == [7] * 3 and first.logprobs == [0.0] * 3
        session.extend(CHAT.turn("w6", session.ids[-1]))
        writer = sampler.open("write", session.ids, (0,), parent=session)
        await writer.generate(20)
        assert service.bodies[-1] == {
            "model": "m", "temperature": 1.0, "max_completion_tokens": 20, "messages": [
                {"role": "system", "content": "w1 w2"}, {"role": "user", "content": "w3"},
                {"role": "assistant", "content": "w4 w5"}, {"role": "user", "content": "w6"}]}
        assert service.bodies[0]["temperature"] == 0.6
        with pytest.raises(RuntimeError, match="closed"):
            await session.generate(1)

    run(lambda body, n: reply("w4 w5"), scenario)


@pytest.mark.parametrize(("limit", "finish", "expected"), [
    (4, "stop", (3, "stop")), (3, "stop", (3, "stop")), (2, "stop", (2, "length")),
    (9, "length", (2, "length"))])
def test_a_reply_ends_as_the_service_says_or_at_the_local_limit(limit, finish, expected):
    async def scenario(sampler, service):
        session = sampler.open("act", CHAT.opening([{"role": "user", "content": "w1"}]), (0,))
        found = await session.generate(limit)
        assert (len(found.ids), found.finish) == expected

    run(lambda body, n: reply("w4 w5", finish), scenario)


def test_a_full_session_is_told_so_without_a_request():
    async def scenario(sampler, service):
        session = sampler.open("act", CHAT.opening([{"role": "user", "content": "w1"}]), (0,))
        found = await session.generate(9)
        assert found.finish == "context" and len(found.ids) == 1
        assert (await session.generate(9)).finish == "context" and len(service.bodies) == 1

    run(lambda body, n: reply("w4 w5"), scenario, context_tokens=5)


def test_a_generation_of_no_tokens_asks_nobody():
    async def scenario(sampler, service):
        session = sampler.open("act", CHAT.opening([{"role": "user", "content": "w1"}]), (0,))
        assert await session.generate(0) == base.Generation([], [], [], "length")
        assert not service.bodies

    run(lambda body, n: reply("w4"), scenario)


@pytest.mark.parametrize("fault", [
    (500, {}), (429, {}, "Retry-After: 0"), None, (200, {"nothing": 1}),
    (200, {"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}),
    (200, []), (200, {"choices": None}), reply("w4", tokens=-5), reply("w4", prompt="many"),
    reply("w4", tokens=1.5), reply("w4", prompt=True), "half", "drips"])
def test_a_failed_request_is_sent_again(fault):
    async def scenario(sampler, service):
        session = sampler.open("act", CHAT.opening([{"role": "user", "content": "w1"}]), (0,))
        assert CHAT.decode((await session.generate(9)).ids) == "w4"
        assert len(service.bodies) == 3 and sampler.metrics()["sampler/retries"] == 2

    run(lambda body, n: fault if n < 3 else reply("w4"), scenario, request_s=1.0)


def test_a_rejected_request_is_told_and_not_sent_again():
    async def scenario(sampler, service):
        session = sampler.open("act", CHAT.opening([{"role": "user", "content": "w1"}]), (0,))
        with pytest.raises(Refused, match="wrong key"):
            await session.generate(9)
        assert len(service.bodies) == 1

    run(lambda body, n: (401, {"error": "wrong key"}), scenario)


def test_a_service_that_knows_the_limit_by_its_former_name_is_asked_by_that():
    def respond(body, n):
        if "max_completion_tokens" in body:
            return 400, {"error": "unknown field max_completion_tokens"}
        return reply("w4")

    async def scenario(sampler, service):
        prompts = [CHAT.opening([{"role": "user", "content": w}]) for w in WORDS]
        sessions = [sampler.open("act", ids, (0,)) for ids in prompts]
        await asyncio.gather(*(s.generate(9) for s in sessions))
        assert all(b["max_tokens"] == 9 for b in service.bodies if "max_tokens" in b)
        assert len(service.bodies) <= len(WORDS) + 4

    run(respond, scenario)


def test_the_key_comes_from_its_own_variable(monkeypatch):
    async def scenario(sampler, service):
        session = sampler.open("act", CHAT.opening([{"role": "user", "content": "w1"}]), (0,))
        await session.generate(9)
        return service.heads[0].lower()

    assert "authorization" not in run(lambda body, n: reply("w4"), scenario)
    monkeypatch.setenv(openai.API_KEY_VARIABLE, "secret")
    assert "authorization: bearer secret" in run(lambda body, n: reply("w4"), scenario)


def test_spending_is_counted_and_never_passes_the_cap():
    """Also with requests under way: what they may take is set aside."""
    async def scenario(sampler, service):
        prompt = CHAT.opening([{"role": "user", "content": "w1"}])
        assert len(prompt) == 4
        sessions = [sampler.open("act", prompt, (i,)) for i in range(20)]
        found = await asyncio.gather(*(s.generate(6) for s in sessions), return_exceptions=True)
        stopped = [f for f in found if isinstance(f, base.SamplerStop)]
        spent = sampler.metrics()
        total = spent["sampler/prompt_tokens"] + spent["sampler/reply_tokens"]
        assert total == 7 * (20 - len(stopped)) and 85 - 10 < total <= 85
        assert "sampler.openai_tokens = 85" in str(stopped[0])
        assert len(service.bodies) == 20 - len(stopped) and service.most <= 4

    run(lambda body, n: reply("w4 w5", prompt=4, tokens=3), scenario, token_cap=85)


def small(url, **values):
    config = config_lib.default()
    settings = {"sampler.kind": "openai", "sampler.urls": (url,), "sampler.openai_model": "org/m",
                "eval.streams": 2, "eval.rollouts": 1, "env.trials": 2, **values}
    config_lib.override(config, {k: config_lib.as_text(v).strip("'") for k, v in settings.items()})
    config_lib.validate(config)
    return config


def test_an_evaluation_plays_the_service_and_says_what_was_spent(tmp_path, capsys):
    """Its actor always takes the first action of the domain, and its writer repeats a word."""
    action = text_compact.WORDS[0]

    async def whole():
        async with Service(lambda body, n: reply(action)) as service:
            (tmp_path / "config.json").write_text(config_lib.dump(small(service.url)))
            await asyncio.to_thread(evaluate.main, [
                "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "found")])
            return service

    service = asyncio.run(whole())
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found["policies"]) == ["org/m"] and found["policies"]["org/m"]["lost"] == 0
    assert found["spent"]["sampler/prompt_tokens"] == 10 * len(service.bodies)
    assert "org/m" in capsys.readouterr().out


def test_an_evaluation_ends_where_the_tokens_do(tmp_path):
    async def whole():
        async with Service(lambda body, n: reply("w4")) as service:
            config = small(service.url, **{"sampler.openai_tokens": 400})
            (tmp_path / "config.json").write_text(config_lib.dump(config))
            with pytest.raises(SystemExit, match="sampler.openai_tokens = 400"):
                await asyncio.to_thread(evaluate.main, [
                    "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "found")])
        assert not (tmp_path / "found.json").exists()

    asyncio.run(whole())


def test_training_with_a_service_is_refused_at_start(tmp_path):
    with pytest.raises(config_lib.ConfigError, match="rime_jax.evaluate"):
        train.train(small("http://127.0.0.1:1/v1"), run_dir.RunDir(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_only_the_tokenizer_of_the_model_is_needed(tmp_path):
    directory = parts.build(config_lib.default()).directory
    for file in directory.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = small("http://127.0.0.1:1/v1", **{"model.path": str(tmp_path)})
    assert isinstance(parts.build(config).sampler, openai.OpenAISampler)
