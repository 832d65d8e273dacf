"""Every sampler ends a generation that takes too long, and leaves nothing behind when closed."""

import asyncio
import contextlib
import dataclasses
import gc
import threading

import jax
import pytest

from rime_jax import parts, streams, train
from rime_jax.rollout import collect
from rime_jax.rollout.trajectory import Status
from rime_jax.sampler import native, router
from rime_jax.sampler.http import Unavailable
from rime_jax.tracking import run_dir
from tests import scripted
from tests.sampler import test_openai, vllm_runs
from tests.sampler.test_native_finish import Counting
from tests.sampler.vllm_stub import Stub

GENERATE = vllm_runs.GENERATE
KINDS = ("native", "vllm", "openai")
PROMPTS = {"native": [1, 2], "vllm": [1, 2],
           "openai": test_openai.CHAT.opening([{"role": "user", "content": "w1"}])}


class Hang:
    """The first requests that ask it are not answered.

    Attributes:
      connections: open at the server.
      over: devices that hang go on.
    """

    def __init__(self, requests):
        self.connections, self.over = set(), threading.Event()
        self._left = requests

    def __call__(self):
        self._left -= 1
        return self._left >= 0


@contextlib.asynccontextmanager
async def made(kind, hang, monkeypatch, **options):
    """A sampler of a kind, whose devices or server hang when `hang` says so."""
    if kind == "native":
        sampler = counting_sampler(**options)
        device_hangs(hang, monkeypatch)
        yield sampler
        hang.over.set()
    elif kind == "vllm":
        stub = await Stub().start()
        hang.connections = stub._connections
        sampler = vllm_runs.make([stub.url], **options)
        await sampler.publish({"policy": "w0"}, 0)
        stub.fault = lambda path: "hang" if path == GENERATE and hang() else None
        yield sampler
        await stub.die()
    else:
        async with HangingService(hang) as service:
            yield test_openai.sampler_of(service.url, **options)


def counting_sampler(**options):
    """Compiled in no time, with a vocabulary as large as any here."""
    settings = dict(slots=4, context_tokens=32, decode_block=4, prefill_chunks=(64,),
                    devices=jax.devices()[:1])
    sampler = native.NativeSampler(
        Counting(vocab_size=1024), {"act": "policy", "write": "policy"}, (), **settings | options)
    sampler.set_params({"policy": {"scale": 1e3}}, 0)
    sampler.warm_up()
    return sampler


def device_hangs(hang, monkeypatch):
    fetch = native._fetch
    monkeypatch.setattr(
        native, "_fetch", lambda out: fetch(out) if not hang() or hang.over.wait(20) else None)


class HangingService(test_openai.Service):
    def __init__(self, hang):
        super().__init__(lambda body, n: test_openai.reply("w4"))
        self._hang = hang

    async def _serve(self, reader, writer):
        self._hang.connections.add(writer)
        if self._hang():
            await reader.read()  # until the other side hangs up
            writer.close()
        else:
            await super()._serve(reader, writer)
        self._hang.connections.discard(writer)


def run(scenario, kind, monkeypatch, requests=1, **options):
    """Runs `scenario(sampler, hang)`; the first `requests` of the sampler hang."""
    hang = Hang(requests)

    async def whole():
        async with made(kind, hang, monkeypatch, **options) as sampler:
            return await scenario(sampler, hang)

    return asyncio.run(asyncio.wait_for(whole(), 60))


@pytest.mark.parametrize("kind", KINDS)
def test_a_generation_that_takes_too_long_fails_and_leaves_its_session_as_it_was(
    kind, monkeypatch
):
    async def scenario(sampler, hang):
        session = sampler.open("act", PROMPTS[kind], (0,))
        with pytest.raises(TimeoutError, match="sampler.generation_s = 0.5"):
            await session.generate(3)
        assert session.ids == PROMPTS[kind]
        hang.over.set()
        generation = await session.generate(3)
        assert generation.ids and session.ids == [*PROMPTS[kind], *generation.ids]
        session.close()
        await sampler.close()

    run(scenario, kind, monkeypatch, generation_s=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_close_ends_generations_tasks_threads_and_connections(kind, monkeypatch):
    async def scenario(sampler, hang):
        sessions = [sampler.open("act", PROMPTS[kind], (i,)) for i in range(4)]
        working = [asyncio.create_task(s.generate(3)) for s in sessions]
        await asyncio.sleep(0.05)
        await sampler.close()
        await sampler.close()
        for error in await asyncio.gather(*working, return_exceptions=True):
            assert isinstance(error, RuntimeError) and "the sampler was closed" in str(error)
        with pytest.raises(RuntimeError, match="closed sampler"):
            await sampler.open("act", PROMPTS[kind], (9,)).generate(3)
        async with asyncio.timeout(10):
            while hang.connections:
                await asyncio.sleep(0)
        # This scenario and what waits for it.
        assert len(asyncio.all_tasks()) <= 2

    threads = set(threading.enumerate())
    run(scenario, kind, monkeypatch, requests=4)
    assert set(threading.enumerate()) <= threads


def test_the_devices_are_busy_while_a_round_is_under_way_and_not_after_it(monkeypatch):
    async def scenario(sampler, hang):
        session = sampler.open("act", [1, 2], (0,))
        assert sampler.busy_s == 0
        working = asyncio.create_task(session.generate(3))
        while sampler.busy_s < 0.05:
            await asyncio.sleep(0)
        hang.over.set()
        await working
        busy = sampler.busy_s
        await asyncio.sleep(0.01)
        assert sampler.busy_s == busy >= 0.05

    run(scenario, "native", monkeypatch)


def test_a_closed_native_sampler_frees_its_parameters_and_cache():
    def held():
        gc.collect()
        return sum(a.nbytes for a in jax.live_arrays())

    before = held()
    sampler = counting_sampler()
    assert held() > before
    asyncio.run(sampler.close())
    assert held() == before


def test_closing_stops_looking_for_dead_servers_and_removes_the_exchange(monkeypatch):
    monkeypatch.setattr(router, "_FIRST_WAIT_S", 3600.0)

    async def scenario(sampler, stubs):
        own = sampler._routers["policy"]
        own.fail(own.servers[0], Unavailable("dead"))
        exchange = sampler._exchange
        assert exchange.exists()
        await sampler.close()
        assert not exchange.exists()
        assert not any("Router" in repr(task) for task in asyncio.all_tasks())

    vllm_runs.run(scenario)


def test_programs_close_their_sampler_also_when_they_fail(monkeypatch, tmp_path):
    made, build = [], parts.build

    def build_scripted(*args):
        made.append(scripted.ScriptedSampler(lambda call: ""))
        return dataclasses.replace(build(*args), sampler=made[-1])

    def broken(*args):
        raise OSError("the disk is full")

    async def fail():
        async with parts.opened(scripted.small_config()):
            broken()

    monkeypatch.setattr(parts, "build", build_scripted)
    monkeypatch.setattr(train, "Trainer", broken)
    with pytest.raises(OSError):
        asyncio.run(fail())
    with pytest.raises(OSError):
        train.train(scripted.small_config(), run_dir.RunDir(tmp_path))
    assert [sampler.closed for sampler in made] == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_whose_generation_takes_too_long_is_started_again(kind, monkeypatch):
    config = scripted.small_config(env__trials=2)

    async def play(sampler, hang, built, chat):
        asyncio.get_running_loop().call_later(2.2, hang.over.set)
        context = dataclasses.replace(built.context(1.0), sampler=sampler, chat=chat)
        stream = streams.StreamSource(built.domain.make_stream("train"), 0).take(1)
        (rollout,) = await collect.collect(context, stream, 1, (0,))
        await sampler.close()
        return rollout

    built = parts.build(config)
    chat = test_openai.CHAT if kind == "openai" else built.chat
    rollout = run(lambda sampler, hang: play(sampler, hang, built, chat), kind, monkeypatch,
                  generation_s=2.0, context_tokens=512)
    assert rollout.failure is None and rollout.retried == {Status.SAMPLER_ERROR: 1}
