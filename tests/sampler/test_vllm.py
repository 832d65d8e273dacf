"""Rollouts from vLLM servers, against small HTTP servers that fail in every way."""

import asyncio
import collections
import gc
import threading

import hypothesis
import pytest
from hypothesis import strategies as st

from rime_jax.sampler import base, http, router, vllm
from rime_jax.sampler.http import Refused, Unavailable
from tests.sampler import vllm_stub
from tests.sampler.vllm_runs import (
    CONTEXT,
    GENERATE,
    STOP_IDS,
    expected,
    export,
    make,
    run,
    sampling_of,
    turn,
    until,
)
from tests.sampler.vllm_stub import Stub


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits short enough for a test."""
    monkeypatch.setattr(router, "_FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(router, "_LONGEST_WAIT_S", 0.02)
    monkeypatch.setattr(router, "_HEALTH_S", 0.02)


def test_tokens_logprobs_and_versions_are_the_servers():
    async def scenario(sampler, stubs):
        await sampler.publish({"policy": "w1"}, 17)
        _, generation = await turn(sampler, [1, 2], tokens=30)
        ids, logprobs = expected("w1", [1, 2], stubs[0])
        assert (generation.ids, generation.logprobs) == (ids, logprobs)
        assert generation.versions == [17] * len(ids)
        assert generation.finish == ("stop" if ids[-1] in STOP_IDS else "length")
        assert sampler.generated_tokens == len(ids)

    run(scenario, stubs=1)


def test_requests_ask_for_the_raw_distribution_and_nothing_a_model_could_add():
    async def scenario(sampler, stubs):
        await turn(sampler, [1, 2], tokens=9)
        sampling = stubs[0].generations[-1]["sampling_params"]
        assert sampling["temperature"] == 1.0 and sampling["logprobs"] == 0
        assert sampling["top_k"] == 0 and sampling["top_p"] == 1 and sampling["min_p"] == 0
        assert sampling["ignore_eos"] and sampling["stop_token_ids"] == list(STOP_IDS)

    run(scenario, stubs=1)


def test_seeds_differ_between_sessions_and_positions_and_repeat():
    async def scenario(sampler, stubs):
        seeds = []
        for seed in ((0,), (1,), (0,)):
            session, _ = await turn(sampler, [1, 2], seed, tokens=1)
            await session.generate(1)
            seeds.append([b["sampling_params"]["seed"] for b in stubs[0].generations[-2:]])
        assert seeds[0] == seeds[2] and len({*seeds[0], *seeds[1]}) == 4

    run(scenario, stubs=1)


def test_a_session_is_full_at_the_context_and_says_so():
    async def scenario(sampler, _):
        _, generation = await turn(sampler, [1] * (CONTEXT - 1), tokens=5)
        assert len(generation.ids) == 1
        assert generation.finish == ("stop" if generation.ids[0] in STOP_IDS else "context")
        session, generation = await turn(sampler, [1] * CONTEXT, tokens=5)
        assert generation == base.Generation([], [], [], "context")
        session.close()
        with pytest.raises(RuntimeError, match="closed"):
            await session.generate(1)

    run(scenario, stubs=1)


def test_sessions_spread_evenly_and_stay_where_their_cache_is():
    async def scenario(sampler, stubs):
        sessions = [sampler.open("act", [1, i], (i,)) for i in range(9)]
        for _ in range(3):
            await asyncio.gather(*(s.generate(2) for s in sessions))
        served = [collections.Counter(tuple(b["token_ids"][:2]) for b in stub.generations)
                  for stub in stubs]
        assert sorted(len(own) for own in served) == [3, 3, 3]
        assert all(set(own.values()) == {3} for own in served)
        # A writer that goes on in the actor's conversation goes on at its server.
        parents = sessions[:3]
        for parent in parents:
            child = sampler.open("write", [*parent.ids, 9], (1,), parent)
            before = child._server.url
            await child.generate(1)
            assert child._server.url == before
        for session in sessions:
            session.close()
        assert sum(s.sessions for s in sampler._routers["policy"].servers) == 3

    run(scenario, stubs=3)


@pytest.mark.parametrize("fault", ["500", "close", "garbage", "half", "nested", "floods"])
def test_a_failed_request_is_sent_again_elsewhere_with_the_same_result(fault, monkeypatch):
    monkeypatch.setattr(http, "_MAX_BYTES", 1 << 20)

    async def scenario(sampler, stubs):
        left = [3]

        def fails(path):
            if path == GENERATE and left[0]:
                left[0] -= 1
                return fault

        for stub in stubs:
            stub.fault = fails
        _, generation = await turn(sampler, [4, 5])
        assert not left[0]
        assert (generation.ids, generation.logprobs) == expected(
            "w0", [4, 5], *stubs)
        assert sampler.metrics()["sampler/retries"] >= 1
        assert sampler.metrics()["sampler/retries"] == 0

    run(scenario)


def test_a_rejected_request_is_not_sent_again():
    async def scenario(sampler, stubs):
        stubs[0].fault = lambda path: "400" if path == GENERATE else None
        with pytest.raises(Refused, match="400"):
            await turn(sampler, [4, 5])
        assert len(stubs[0].generations) == 1
        assert sampler.metrics()["sampler/servers"] == 1

    run(scenario, stubs=1)


def test_a_server_that_dies_is_left_out_and_gets_the_newest_weights_before_it_serves_again():
    async def scenario(sampler, stubs):
        dead, alive = stubs
        sessions = [sampler.open("act", [1, i], (i,)) for i in range(8)]
        dead.step_s = 3600
        dead.calls.clear()
        working = [asyncio.create_task(s.generate(6)) for s in sessions]
        await until(lambda: dead.calls.count(GENERATE) == 4)
        await dead.die()
        dead.step_s = 0.0
        first = await asyncio.gather(*working)
        for session, generation in zip(sessions, first, strict=True):
            ids, logprobs = expected("w0", session.ids[:2], alive)
            assert (generation.ids, generation.logprobs) == (ids, logprobs)
        assert sampler.metrics()["sampler/servers"] == 1
        await sampler.publish({"policy": "w1"}, 1)
        dead.calls.clear()
        dead.bodies.clear()
        await dead.start()
        await until(lambda: sampler.metrics()["sampler/servers"] == 2)
        await asyncio.gather(*(turn(sampler, [2, i], (i,)) for i in range(8)))
        served = dead.generations
        loaded = dead.calls.index("/collective_rpc")
        assert served and dead.bodies.index(served[0]) > loaded
        assert dead.weights == "w1"

    run(scenario)


def test_an_answer_of_a_server_that_was_started_again_unnoticed_is_thrown_away():
    async def scenario(sampler, stubs):
        await stubs[0].die()
        await stubs[0].start()
        _, generation = await turn(sampler, [4, 5])
        assert (generation.ids, generation.logprobs) == expected("w0", [4, 5], stubs[0])
        assert generation.versions == [0] * len(generation.ids)
        assert stubs[0].weights == "w0"

    run(scenario, stubs=1)


def test_tokens_before_and_after_a_push_in_mid_request_carry_their_own_versions():
    async def scenario(sampler, stubs):
        stubs[0].step_s = 0.1
        session = sampler.open("act", [2, 9], (5,))
        working = asyncio.create_task(session.generate(30))
        await asyncio.sleep(0.25)
        await sampler.publish({"policy": "w1"}, 1)
        stubs[0].step_s = 0.0
        generation = await working
        assert set(generation.versions) == {0, 1}
        assert generation.versions == sorted(generation.versions)
        (sent,) = stubs[0].generations
        for i, version in enumerate(generation.versions):
            found = vllm_stub.next_token(
                f"w{version}", session.ids[: 2 + i], sent["sampling_params"]["seed"])
            assert found == (generation.ids[i], generation.logprobs[i])

    run(scenario, stubs=1, stop_ids=())


def test_a_server_that_answers_nothing_any_more_does_not_keep_its_requests():
    async def scenario(sampler, stubs):
        hung, alive = stubs
        hung.fault = lambda path: "hang"
        sessions = [sampler.open("act", [1, i], (i,)) for i in range(4)]
        found = await asyncio.gather(*(s.generate(4) for s in sessions))
        for session, generation in zip(sessions, found, strict=True):
            assert (generation.ids, generation.logprobs) == expected(
                "w0", session.ids[:2], alive)
        hung.fault = lambda path: None
        await until(lambda: sampler.metrics()["sampler/servers"] == 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rime_jax.sampler.vllm_client._SHORT_S", 0.02)
        run(scenario)


def test_a_server_with_other_weights_ends_the_program_with_a_remedy():
    async def scenario(sampler, _):
        with pytest.raises(base.SamplerStop, match="gap_limit.*launch/vllm_server.sh"):
            await sampler.publish({"policy": "w0"}, 0)

    run(scenario, [Stub(load=lambda directory: "another model")], publish=False)


def test_one_server_with_other_weights_is_left_out():
    async def scenario(sampler, stubs):
        found = await asyncio.gather(*(turn(sampler, [1, i], (i,)) for i in range(6)))
        assert len(found) == 6 and sampler.metrics()["sampler/servers"] == 1
        assert not stubs[0].generations

    run(scenario, [Stub(load=lambda directory: "another model"), Stub()])


def test_too_short_a_context_is_told_with_the_remedy():
    async def scenario(sampler, _):
        with pytest.raises(base.SamplerStop, match="max-model-len"):
            await sampler.publish({"policy": "w0"}, 0)

    run(scenario, [Stub(admitted=CONTEXT - 1)], publish=False)


def test_a_server_that_lacks_the_routes_is_told_with_the_remedy():
    async def scenario(sampler, _):
        with pytest.raises(base.SamplerStop, match="launch/vllm_server.sh"):
            await sampler.publish({"policy": "w0"}, 0)

    run(scenario, [Stub(lambda path: "400" if path == "/weight_info" else None)], publish=False)


def test_another_kind_of_server_is_told_with_the_remedy():
    class Other(Stub):
        async def _answer(self, path, target, body):
            return 200, b'["hello"]'

    async def scenario(sampler, _):
        with pytest.raises(base.SamplerStop, match="no vLLM server.*launch/vllm_server.sh"):
            await sampler.publish({"policy": "w0"}, 0)

    run(scenario, [Other()], publish=False)


def test_no_server_at_all_is_told_after_the_patience():
    async def scenario(sampler, stubs):
        await stubs[0].die()
        with pytest.raises(Unavailable, match="sampler.urls"):
            await turn(sampler, [1, 2])
        with pytest.raises(base.SamplerStop, match="sampler.urls"):
            await sampler.publish({"policy": "w1"}, 1)
        await stubs[0].start()
        await until(lambda: sampler.metrics()["sampler/servers"] == 1)
        _, generation = await turn(sampler, [1, 2])
        assert generation.versions == [1] * len(generation.ids)

    run(scenario, stubs=1, request_s=0.5)


def test_each_parameter_set_goes_to_its_own_servers():
    async def scenario():
        stubs = [await Stub().start() for _ in range(2)]
        sampler = make({"a": [stubs[0].url], "b": [stubs[1].url]})
        await sampler.publish({"a": "wa", "b": "wb"}, 3)
        assert [stub.weights for stub in stubs] == ["wa", "wb"]
        act = sampler.open("act", [1, 2], (0,))
        await act.generate(2)
        write = sampler.open("write", [*act.ids, 4], (0,), parent=act)
        await write.generate(2)
        assert [len(stub.generations) for stub in stubs] == [1, 1]
        for stub in stubs:
            await stub.die()

    asyncio.run(scenario())


class Together:
    """`distributed.Processes` of two samplers in one event loop."""

    def __init__(self, index, values, meet):
        self.index, self.count, self.first = index, 2, index == 0
        self._values, self._meet = values, meet

    def gather(self, value):
        self._values[self.index] = value
        self._meet.wait(30)
        found = list(self._values)
        self._meet.wait(30)
        return found


def test_of_two_processes_the_first_loads_and_both_use_all_servers(tmp_path):
    async def scenario():
        stubs = [await Stub().start() for _ in range(2)]
        values, meet = [None, None], threading.Barrier(2)
        samplers = [
            make([s.url for s in stubs], exchange_dir=str(tmp_path),
                 processes=Together(i, values, meet),
                 export=lambda params, to, i=i: export(params, to) if i == 0 else None)
            for i in range(2)]

        async def publish(version):
            await asyncio.gather(
                *(s.publish({"policy": f"w{version}"}, version) for s in samplers))

        await publish(0)
        await publish(1)
        assert [s.calls.count("/collective_rpc") for s in stubs] == [2, 2]
        for sampler in samplers:
            found = await asyncio.gather(*(turn(sampler, [1, i], (i,)) for i in range(4)))
            assert {v for _, g in found for v in g.versions} == {1}
        await stubs[1].die()
        await stubs[1].start()
        # Only the second process notices; the first one has to, before the server can serve again.
        for sampler in reversed(samplers):
            found = await asyncio.gather(*(turn(sampler, [2, i], (i,)) for i in range(4)))
            assert {v for _, g in found for v in g.versions} == {1}
        await until(lambda: [s.metrics()["sampler/servers"] for s in samplers] == [2, 2])
        assert stubs[1].weights == "w1" and stubs[1].calls.count("/collective_rpc") == 3
        for stub in stubs:
            await stub.die()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_few_old_weights_are_kept_on_disk_and_none_after_the_end():
    async def scenario(sampler, _):
        for version in range(1, 5):
            await sampler.publish({"policy": f"w{version}"}, version)
        kept = {d.name.rsplit("-", 1)[1] for d in sampler._exchange.iterdir()}
        assert kept == {"3.policy", "4.policy"}
        return sampler._exchange

    exchange = run(scenario, stubs=1)
    gc.collect()
    assert not exchange.exists()


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=40)
def test_no_fault_loses_doubles_or_changes_a_sample(data):
    """Whatever requests fail and whichever server dies when: every generation is what an
    undisturbed server with the weights of its version would have given."""
    faults = data.draw(st.lists(
        st.sampled_from([None, None, None, "500", "close", "garbage"]), max_size=60))
    killed = data.draw(st.lists(st.integers(0, 12), max_size=3))
    seen = iter(faults)

    async def scenario(sampler, stubs):
        for stub in stubs:
            stub.fault = lambda path: next(seen, None)
            stub.step_s = 0.001

        async def player(i):
            session = sampler.open("act", [1, i], (i,))
            for _ in range(3):
                start = len(session.ids)
                generation = await session.generate(5)
                check(session.ids[:start], generation, stubs)
                assert session.ids[start:] == generation.ids
                session.extend([8])

        async def killer():
            for step, which in enumerate(killed):
                await asyncio.sleep(0.004 * which)
                victim = stubs[which % 2]
                await victim.die()
                await victim.start()
                await sampler.publish({"policy": f"w{step + 1}"}, step + 1)

        await asyncio.gather(killer(), *(player(i) for i in range(5)))

    with pytest.MonkeyPatch.context() as patch:
        # A generation may meet all the faults.
        patch.setattr(vllm, "_ATTEMPTS", 100)
        run(scenario)


def check(prompt, generation, stubs):
    assert 0 < len(generation.ids) <= 5
    sampling = sampling_of(prompt, stubs)
    for i, version in enumerate(generation.versions):
        found = vllm_stub.next_token(
            f"w{version}", [*prompt, *generation.ids[:i]], sampling["seed"])
        assert found == (generation.ids[i], generation.logprobs[i])
    assert not set(generation.ids[:-1]) & set(STOP_IDS)
    assert generation.finish == ("stop" if generation.ids[-1] in STOP_IDS else "length")
