"""A vLLM sampler with stub servers: making it, running it, and what it must generate."""

import asyncio

import numpy as np

from rime_jax.sampler import vllm
from tests.sampler import vllm_stub
from tests.sampler.vllm_stub import Stub

STOP_IDS = (3, 7)
CONTEXT = 40
PROBE = [1, 2, 5, 4]
GENERATE = "/inference/v1/generate"


def export(params, directory):
    directory.mkdir()
    (directory / "weights").write_text(params)


def learner_logprobs(params):
    return np.array(vllm_stub.prompt_logprobs(params, PROBE))


def make(urls, *, request_s=20.0, stop_ids=STOP_IDS, **options):
    if not isinstance(urls, dict):
        urls = {"policy": urls}
    settings = dict(
        urls=urls, context_tokens=CONTEXT, export=export,
        probe=vllm.Probe(PROBE, learner_logprobs), exchange_dir="", gap_limit=0.01)
    names = sorted(urls)
    return vllm.VllmSampler(
        {"act": names[0], "write": names[-1]}, stop_ids, request_s=request_s,
        **settings | options)


def run(scenario, stubs=2, publish=True, **options):
    """Runs `scenario(sampler, stubs)` in an event loop, with servers that are up.

    Args:
      stubs: how many servers, or the servers.
    """

    async def whole():
        servers = [Stub() for _ in range(stubs)] if isinstance(stubs, int) else stubs
        for stub in servers:
            await stub.start()
        sampler = make([s.url for s in servers], **options)
        try:
            if publish:
                await sampler.publish({"policy": "w0"}, 0)
            return await scenario(sampler, servers)
        finally:
            for stub in servers:
                await stub.die()

    return asyncio.run(asyncio.wait_for(whole(), 60))


def expected(weights, session_ids, *stubs):
    """What the request of a prompt would get from an undisturbed server with those weights."""
    sampling = sampling_of(session_ids, stubs)
    return vllm_stub.generated(
        weights, session_ids, sampling["seed"], sampling["max_tokens"], sampling["stop_token_ids"])


def sampling_of(session_ids, stubs):
    return next(b["sampling_params"] for stub in stubs for b in stub.generations
                if b["token_ids"] == session_ids)


async def turn(sampler, prompt, seed=(0,), tokens=6):
    session = sampler.open("act", prompt, seed)
    generation = await session.generate(tokens)
    assert session.ids == [*prompt, *generation.ids]
    return session, generation


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)
