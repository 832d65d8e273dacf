"""The client beside servers that fail in every way: what is counted, tried again, kept, shared."""

import asyncio
import collections
import contextlib
import json
import socket

import pytest

from rime_jax.judge import client, rubric
from rime_jax.judge.base import Verdict
from rime_jax.judge.chat import Failure
from tests.judge.stub import FULL_MARKS, Stub, http, reply

WORDS = rubric.DomainWords("plays", "what a thing does", "a thing to try")
BEST = Verdict((2, 2, 2, 2))

# Behaviour of the stub → how a verdict and each of its requests are counted.
ENDS = {
    "fine": "answered", "hangs": "timeout", "drips": "timeout", "closes": "closed",
    "half": "closed", "no_http": "closed", "error_500": "server_error",
    "error_503": "server_error", "busy": "rate_limited", "forbidden": "refused",
    "moved": "refused", "empty": "no_completion", "no_choices": "no_completion",
    "nested": "no_completion", "no_text": "no_completion", "floods": "no_completion",
    "cut_off": "cut_off", "chatty": "not_json", "thinks_on": "unclosed_think",
    "other_keys": "wrong_keys", "out_of_range": "wrong_value", "fraction": "wrong_value",
}


def judge_of(*urls, **options):
    defaults = dict(concurrency=64, timeout_s=60.0, retries=0, cache=None, wait_s=0.0, rest_s=0.0)
    return client.ServerJudge(urls, "a-judge", WORDS, **(defaults | options))


def after_of(body):
    """The memory that a request asks about."""
    return rubric.read_prompt(body["messages"][-1]["content"])[1]


def by_memory(body):
    """Behaves as the first word of the memory says."""
    return after_of(body).split()[0]


def counted(found, kind):
    prefix = f"judge/{kind}/"
    return {name.removeprefix(prefix): n for name, n in found.items()
            if name.startswith(prefix) and n}


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


def run(behave, use, **options):
    """`use(judge, stub)` beside one stub; what it returns."""
    async def go():
        async with Stub(behave) as stub:
            return await use(judge_of(stub.url, **options), stub)
    return asyncio.run(go())


def test_every_way_to_fail_has_its_count_under_32_requests_at_a_time():
    tasks = [f"{how} {i}" for i in range(3) for how in ENDS]

    async def use(judge, stub):
        verdicts = await asyncio.gather(*(judge.score("", task) for task in tasks))
        return verdicts, judge.metrics(), len(stub.requests)

    verdicts, found, received = run(by_memory, use, concurrency=32, timeout_s=4.0)
    for task, verdict in zip(tasks, verdicts, strict=True):
        assert verdict == (BEST if task.startswith("fine") else None), task
    expected = collections.Counter(ENDS[task.split()[0]] for task in tasks)
    assert counted(found, "verdicts") == expected
    assert counted(found, "requests") == expected
    assert received == len(tasks)


def test_every_reason_is_reported_also_where_nothing_happened():
    found = judge_of("http://localhost/v1").metrics()
    assert set(found) == {f"judge/{kind}/{how}" for kind, ways in (
        ("verdicts", ("answered", "cached", *Failure)), ("requests", ("answered", *Failure)),
    ) for how in ways}
    assert set(found.values()) == {0.0}


def test_counts_are_those_since_the_last_call():
    async def use(judge, stub):
        await judge.score("", "fine")
        first = judge.metrics()
        return counted(first, "verdicts"), counted(judge.metrics(), "verdicts")

    assert run(by_memory, use) == ({"answered": 1}, {})


@pytest.mark.parametrize("how", ["closes", "error_500", "busy", "chatty", "no_http"])
def test_a_failure_that_passes_costs_a_request_and_no_verdict(how):
    seen = collections.Counter()

    def behave(body):
        seen[after_of(body)] += 1
        return "fine" if seen[after_of(body)] > 2 else how

    async def use(judge, stub):
        return await judge.score("", "a"), judge.metrics()

    verdict, found = run(behave, use, retries=2)
    assert verdict == BEST
    assert counted(found, "verdicts") == {"answered": 1}
    assert counted(found, "requests") == {"answered": 1, ENDS[how]: 2}


def test_what_is_refused_is_not_asked_again():
    async def use(judge, stub):
        return await judge.score("", "forbidden"), len(stub.requests)

    assert run(by_memory, use, retries=5) == (None, 1)


def test_no_more_requests_at_a_time_than_allowed():
    async def use(_, __):
        now = most = 0

        async def answer(reader, writer):
            nonlocal now, most
            now += 1
            most = max(most, now)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.02)
            now -= 1
            writer.write(reply(FULL_MARKS))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        judge = judge_of(url, concurrency=3)
        verdicts = await asyncio.gather(*(judge.score("", str(i)) for i in range(12)))
        server.close()
        return most, verdicts

    most, verdicts = run(by_memory, use)
    assert most == 3 and verdicts == [BEST] * 12


def test_a_question_that_is_under_way_is_not_asked_twice():
    async def use(judge, stub):
        verdicts = await asyncio.gather(*(judge.score("", "fine") for _ in range(8)))
        return verdicts, len(stub.requests), counted(judge.metrics(), "verdicts")

    assert run(by_memory, use) == ([BEST] * 8, 1, {"answered": 1, "cached": 7})


def test_who_gives_up_does_not_take_the_answer_from_the_others():
    async def use(judge, stub):
        first = asyncio.create_task(judge.score("", "fine"))
        second = asyncio.create_task(judge.score("", "fine"))
        while not stub.requests:
            await asyncio.sleep(0.01)
        first.cancel()
        return await second, len(stub.requests)

    assert run(by_memory, use) == (BEST, 1)


def test_a_verdict_outlives_the_process_and_a_failure_does_not(tmp_path):
    async def use(judge, stub):
        return [await judge.score("", task) for task in ("fine", "chatty")], len(stub.requests)

    assert run(by_memory, use, cache=tmp_path) == ([BEST, None], 2)
    assert run(by_memory, use, cache=tmp_path) == ([BEST, None], 1)


def test_a_disk_that_takes_nothing_loses_no_verdict(tmp_path):
    (tmp_path / "file").write_text("")

    async def use(judge, stub):
        return await judge.score("", "fine")

    assert run(by_memory, use, cache=tmp_path / "file") == BEST


def test_a_dead_server_is_left_out_and_takes_its_share_again_when_it_is_back():
    dead = True

    async def go():
        nonlocal dead
        async with Stub(lambda _: "error_500" if dead else "fine") as a, Stub(by_memory) as b:
            judge = judge_of(a.url, b.url, retries=3, rest_s=1.0)

            async def ask(label):
                return await asyncio.gather(
                    *(judge.score("", f"fine {label} {i}") for i in range(20)))

            assert await ask("first") == [BEST] * 20
            failures = len(a.requests)
            assert await ask("second") == [BEST] * 20
            assert len(a.requests) - failures <= 3
            dead = False
            await asyncio.sleep(1.0)
            back = len(a.requests)
            assert await ask("third") == [BEST] * 20
            assert await ask("fourth") == [BEST] * 20
            return len(a.requests) - back

    assert asyncio.run(go()) > 5


def test_without_any_server_questions_end_soon_and_are_counted():
    async def go():
        judge = judge_of(closed_port(), concurrency=1, rest_s=3600.0)
        verdicts = [await judge.score("", str(i)) for i in range(10)]
        return verdicts, counted(judge.metrics(), "verdicts")

    assert asyncio.run(go()) == ([None] * 10, {"no_connection": 3, "left_out": 7})


def test_a_request_is_at_temperature_0_in_the_schema_with_the_key(monkeypatch):
    monkeypatch.setenv(client.API_KEY_VARIABLE, "secret")

    async def use(judge, stub):
        await judge.score("green", "fine")
        return stub.requests

    (request,) = run(by_memory, use)
    assert request["temperature"] == 0 and request["model"] == "a-judge"
    assert request["response_format"] == rubric.RESPONSE_FORMAT
    assert request["messages"] == rubric.prompt("green", "fine", WORDS)
    assert request["headers"]["authorization"] == "bearer secret"


@pytest.mark.parametrize("refused, says", [
    ({"response_format"}, "response_format is not supported"),
    ({"response_format"}, "guided decoding is off"),
    ({"temperature"}, "Unsupported value: 'temperature' does not support 0"),
    ({"temperature", "response_format"}, "bad request"),
])
def test_an_option_that_a_server_refuses_is_left_out_from_then_on(refused, says):
    def behave(body):
        return http(400, {"error": {"message": says}}) if refused & body.keys() else "fine"

    async def use(judge, stub):
        verdicts = [await judge.score("", task) for task in "abc"]
        return verdicts, [refused & request.keys() for request in stub.requests], judge.metrics()

    verdicts, asked_with, found = run(behave, use)
    assert verdicts == [BEST] * 3 and asked_with[-2:] == [set()] * 2
    assert counted(found, "requests") == {"answered": 3}


def test_a_refusal_of_one_question_changes_nothing_for_the_others():
    def behave(body):
        return (http(400, {"error": {"message": "the prompt is too long"}})
                if after_of(body) == "long" else "fine")

    async def use(judge, stub):
        verdicts = [await judge.score("", task) for task in ("long", "short")]
        return verdicts, stub.requests[-1]

    verdicts, last = run(behave, use)
    assert verdicts == [None, BEST] and {"temperature", "response_format"} <= last.keys()


@pytest.mark.parametrize("text", ["timeout", "answered", "left_out", ""])
def test_a_reply_that_spells_a_failure_is_only_a_reply(text):
    async def use(judge, stub):
        return await judge.score("", "a"), counted(judge.metrics(), "verdicts")

    assert run(lambda _: reply(text), use) == (None, {"not_json": 1})


@pytest.mark.parametrize("memory", ["\ud800", "\x00", "a" * 200_000, "{mark}", "\N{ALEMBIC}"])
def test_any_memory_can_be_asked_about(memory, tmp_path):
    async def use(judge, stub):
        return await judge.score(memory, f"fine {memory}"), json.dumps(stub.requests)

    assert run(by_memory, use, cache=tmp_path)[0] == BEST


def test_an_answer_that_comes_after_its_time_is_no_answer():
    async def use(judge, stub):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await judge.score("", "hangs")
        return await judge.score("", "fine")

    assert run(by_memory, use, timeout_s=30.0) == BEST
