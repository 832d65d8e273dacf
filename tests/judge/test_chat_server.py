"""The server's side of the protocol, and the two backends behind it."""

import asyncio
import json
import pathlib

import httpx2
import pytest

from rime_jax.judge import backends, rubric
from rime_jax.judge.base import CRITERIA
from rime_jax.judge.chat_server import Completion, Refusal
from rime_jax.memory import CompactMemory
from tests import scripted
from tests.judge.stub import chat_server_of

WORDS = rubric.DomainWords("plays", "what a thing does", "a thing to try")
QUESTION = [{"role": "user", "content": "hello"}]


async def echo(question):
    if question.messages[-1]["content"] == "refuse":
        raise Refusal("messages: not this one")
    if question.messages[-1]["content"] == "break":
        raise RuntimeError("broken")
    return Completion(question.messages[-1]["content"], "stop", 1, 1)


def ask(answer, *requests, model="a-judge"):
    """The (status, fields) of each (method, path, options) on one connection."""
    async def go():
        async with chat_server_of(answer, model) as url, httpx2.AsyncClient(
                base_url=url.removesuffix("/v1"), timeout=300) as http:
            answers = [await http.request(method, path, **options)
                       for method, path, options in requests]
            return [(a.status_code, a.json()) for a in answers]
    return asyncio.run(go())


def chat(**fields):
    body = {"model": "a-judge", "messages": QUESTION} | fields
    return "POST", "/v1/chat/completions", {"json": body}


def test_a_completion_has_the_fields_of_the_protocol():
    ((status, found),) = ask(echo, chat(temperature=0))
    assert status == 200 and found["object"] == "chat.completion" and found["model"] == "a-judge"
    assert found["choices"] == [{"index": 0, "finish_reason": "stop",
                                 "message": {"role": "assistant", "content": "hello"}}]
    assert found["usage"] == {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def test_health_and_the_list_of_models():
    health, models = ask(echo, ("GET", "/health", {}), ("GET", "/v1/models", {}))
    assert health == (200, {"status": "ok"})
    assert models[0] == 200 and [m["id"] for m in models[1]["data"]] == ["a-judge"]


@pytest.mark.parametrize("fields, status, named", [
    ({"model": "gpt"}, 404, "model 'gpt'"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "user"}]}, 400, "messages"),
    ({"messages": [{"role": "user", "content": ["picture"]}]}, 400, "messages"),
    ({"stream": True}, 400, "stream"),
    ({"tools": [{}]}, 400, "tools"),
    ({"n": 2}, 400, "n must"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"temperature": -1}, 400, "temperature"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"response_format": {"type": "json_object"}}, 400, "response_format: type"),
    ({"messages": [{"role": "user", "content": "refuse"}]}, 400, "messages: not this one"),
    ({"messages": [{"role": "user", "content": "break"}]}, 500, "broken"),
])
def test_what_cannot_be_answered_is_refused_by_name_and_the_next_is_served(fields, status, named):
    refused, served = ask(echo, chat(**fields), chat())
    assert refused[0] == status and named in refused[1]["error"]["message"]
    assert served[0] == 200


@pytest.mark.parametrize("path, options, status", [
    ("/v1/completions", {"json": {}}, 404),
    ("/v1/chat/completions", {"content": b"{"}, 400),
    ("/v1/chat/completions", {"content": b"[" * 100_000}, 400),
    ("/v1/chat/completions", {"json": []}, 400),
])
def test_bad_requests_leave_the_server_serving(path, options, status):
    refused, served = ask(echo, ("POST", path, options), chat())
    assert (refused[0], served[0]) == (status, 200)


@pytest.mark.parametrize("length, status", [
    ("99999999999", 413), ("-1", 411), ("\u00b2", 411), ("", 411), ("9" * 5000, 413),
])
def test_a_body_of_impossible_length_is_refused_unread(length, status):
    async def go():
        async with chat_server_of(echo) as url:
            reader, writer = await asyncio.open_connection(
                *url.removeprefix("http://").removesuffix("/v1").split(":"))
            writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
                         .encode("latin-1"))
            answer = await reader.read()  # to the end: the server closes the connection
            writer.close()
            return answer

    assert asyncio.run(go()).startswith(f"HTTP/1.1 {status} ".encode())


def test_many_questions_are_worked_on_at_once():
    waiting = 0
    all_here = asyncio.Event()

    async def together(question):
        nonlocal waiting
        waiting += 1
        if waiting == 32:
            all_here.set()
        await all_here.wait()
        return Completion(question.messages[0]["content"], "stop", 0, 0)

    async def go():
        async with chat_server_of(together) as url, httpx2.AsyncClient(timeout=60) as http:
            answers = await asyncio.gather(*(
                http.post(f"{url}/chat/completions", json={
                    "model": "a-judge", "messages": [{"role": "user", "content": str(i)}]})
                for i in range(32)))
            return [a.json()["choices"][0]["message"]["content"] for a in answers]

    assert asyncio.run(go()) == [str(i) for i in range(32)]


def test_the_lexical_judge_refuses_what_is_no_rubric():
    ((status, found),) = ask(backends.lexical(CompactMemory()), chat())
    assert status == 400 and "rubric" in found["error"]["message"]


def test_the_lexical_judge_answers_the_rubric_with_a_verdict():
    messages = rubric.prompt("green small", "green small red large try pink", WORDS)
    ((_, found),) = ask(backends.lexical(CompactMemory()), chat(
        messages=messages, response_format=rubric.RESPONSE_FORMAT))
    text = found["choices"][0]["message"]["content"]
    assert json.loads(text) == dict(zip(CRITERIA, (1, 0, 2, 2), strict=True))


def test_a_model_directory_answers_greedily_and_says_when_it_was_cut():
    answer = backends.model(
        pathlib.Path(scripted.warm_model()), "float32", context_tokens=64, slots=8)
    words = [{"role": "user", "content": "; 0 small blue round"}]
    long = [{"role": "user", "content": "green " * 80}]
    one, two, cut, refused = ask(
        answer, chat(messages=words, temperature=0), chat(messages=words, temperature=0),
        chat(messages=words, temperature=0, max_tokens=1), chat(messages=long))
    assert one[0] == 200 and one[1]["choices"] == two[1]["choices"]
    assert cut[1]["usage"]["completion_tokens"] == 1
    assert cut[1]["choices"][0]["finish_reason"] == "length"
    assert refused[0] == 400 and "64" in refused[1]["error"]["message"]
