"""Answers of vLLM servers that are not what they should be count as none."""

import asyncio

import pytest

from rime_jax.sampler import base, router
from tests.sampler.vllm_runs import GENERATE, expected, run, turn


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits short enough for a test."""
    monkeypatch.setattr(router, "_FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(router, "_LONGEST_WAIT_S", 0.02)
    monkeypatch.setattr(router, "_HEALTH_S", 0.02)


def test_an_answer_that_trickles_in_is_given_up_after_its_time():
    async def scenario(sampler, stubs):
        stubs[0].fault = lambda path: "drips" if path == GENERATE else None
        stubs[1].fault = lambda path: None
        found = await asyncio.gather(*(turn(sampler, [4, i], (i,)) for i in range(4)))
        for i, (_, generation) in enumerate(found):
            assert (generation.ids, generation.logprobs) == expected("w0", [4, i], stubs[1])

    run(scenario, request_s=1.0)


def spoilt(name):
    """The choice of an answer, changed."""
    def change(choice):
        content = choice["logprobs"]["content"]
        if name == "a log-probability too few":
            content.pop()
        elif name == "a token too many":
            content.append({"token_id": 1, "logprob": -1.0})
            choice["token_ids"].append(1)
            choice["weight_versions"][-1]["end"] += 1
        elif name == "cut short":
            for part in (content, choice["token_ids"], choice["weight_versions"]):
                part.pop()
        elif name == "no tokens":
            for part in (content, choice["token_ids"], choice["weight_versions"]):
                part.clear()
        elif name == "tokens that are no numbers":
            content[0]["token_id"] = choice["token_ids"][0] = "4"
        elif name == "negative tokens":
            content[0]["token_id"] = choice["token_ids"][0] = -4
        elif name == "tokens without a version":
            choice["weight_versions"].pop()
        elif name == "aborted":
            choice["finish_reason"] = "abort"
        elif name == "nothing":
            choice.clear()
        else:
            content[0]["logprob"] = name
    return change


@pytest.mark.parametrize("how", [
    "a log-probability too few", "a token too many", "cut short", "no tokens",
    "tokens that are no numbers", "negative tokens", "tokens without a version", "aborted",
    "nothing", float("nan"), float("-inf"), None, "low"])
def test_an_answer_that_is_not_whole_counts_as_none(how):
    async def scenario(sampler, stubs):
        left = [3]

        def spoil(choice):
            left[0] -= 1
            if left[0] >= 0:
                spoilt(how)(choice)

        for stub in stubs:
            stub.spoil = spoil
        _, generation = await turn(sampler, [4, 5])
        assert (generation.ids, generation.logprobs) == expected("w0", [4, 5], *stubs)
        assert sampler.metrics()["sampler/retries"] == 3

    # Without stop ids each answer has as many tokens as were asked for.
    run(scenario, stop_ids=())


def test_a_generation_of_no_tokens_asks_nobody():
    async def scenario(sampler, stubs):
        session = sampler.open("act", [1, 2], (0,))
        for tokens in (0, -1):
            assert await session.generate(tokens) == base.Generation([], [], [], "length")
        assert session.ids == [1, 2] and not stubs[0].generations

    run(scenario, stubs=1)
