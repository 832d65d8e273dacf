"""The vLLM sampler against a real server: same numbers, new weights, death and return."""

import asyncio
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import parts, train
from rime_jax.rollout.collect import collect
from rime_jax.sampler import base, vllm_client
from rime_jax.streams import StreamSource
from rime_jax.tracking import metrics, run_dir
from tests.vllm.conftest import CONTEXT, POLICY


@functools.cache
def params_of(version):
    return POLICY.init(jax.random.key(version))


@jax.jit
def _forward_logprobs(params, ids_T):
    positions = jnp.arange(CONTEXT)[None]
    hidden = POLICY.forward(params, ids_T[None], positions, jnp.ones_like(positions))
    return jax.nn.log_softmax(POLICY.logits(params, hidden)[0])


def logprobs_of(version, ids):
    """[T - 1, V] of what follows each of `ids` but the last, by one full forward."""
    padded = np.zeros(CONTEXT, np.int32)
    padded[: len(ids)] = ids
    return np.asarray(_forward_logprobs(params_of(version), padded))[: len(ids) - 1]


def config_of(model, url, **values):
    config = config_lib.default()
    settings = {
        "model.path": str(model), "sampler.kind": "vllm", "sampler.urls": (url,),
        "sampler.gap_limit": 1e-4, "env.trials": 3, "rollout.streams_per_step": 2,
        "rollout.group_size": 4, "rollout.context_tokens": CONTEXT,
        "learner.row_tokens": CONTEXT, "steps": 2, "eval.every": 0, "eval.streams": 2,
        "eval.rollouts": 1, "track.kl_every": 0, **values}
    for name, value in settings.items():
        *groups, last = name.split(".")
        node = config
        for group in groups:
            node = node[group]
        node[last] = value
    config_lib.validate(config)
    return config


def run(model, server, scenario, **values):
    """Runs `scenario(sampler, built)` with version 0 published."""

    async def whole():
        async with parts.opened(config_of(model, server.url, **values)) as built:
            await built.sampler.publish({"policy": params_of(0)}, 0)
            return await scenario(built.sampler, built)

    return asyncio.run(whole())


def check(ids, start, generation):
    """Each token's log-probability is that of a full forward with the weights of its version."""
    for version in set(generation.versions):
        every = logprobs_of(version, ids)
        for i, made_by in enumerate(generation.versions):
            if made_by == version:
                own = every[start + i - 1, generation.ids[i]]
                assert abs(own - generation.logprobs[i]) < 1e-4, (i, version)


async def turn(session, tokens, temperature=1.0):
    start = len(session.ids)
    generation = await session.generate(tokens, temperature)
    assert session.ids[start:] == generation.ids
    return start, generation


def test_logprobs_are_those_of_a_full_forward_at_any_temperature_over_several_turns(model, server):
    async def scenario(sampler, built):
        async def player(i):
            session = sampler.open("act", [6 + i, 9, 11], (i,))
            for temperature in (1.0, 0.5, 1.7, 0.0):
                start, generation = await turn(session, 20, temperature)
                check(session.ids, start, generation)
                if temperature == 0:
                    best = logprobs_of(0, session.ids).argmax(1)
                    assert generation.ids == best[start - 1 :].tolist()
                session.extend([7, 12 + i])
            session.close()

        await asyncio.gather(*map(player, range(12)))
        print(f"gap of the probe: {sampler.metrics()['sampler/logprob_gap']:.1e}, "
              f"publish: {sampler.publish_s:.2f} s")

    run(model, server, scenario)


def test_the_same_seed_gives_the_same_tokens_alone_and_in_company(model, server):
    async def scenario(sampler, built):
        async def of(i):
            session = sampler.open("act", [6, 9, 11], (i,))
            return (await turn(session, 20))[1].ids

        alone = await of(3)
        together = await asyncio.gather(*map(of, range(8)))
        assert together[3] == alone and len({tuple(ids) for ids in together}) > 4

    run(model, server, scenario)


def test_a_push_changes_the_outputs_to_the_new_weights(model, server):
    """Also those of the head, which is tied to the embeddings here."""
    async def scenario(sampler, built):
        for version in (1, 2, 0):
            await sampler.publish({"policy": params_of(version)}, version)
            session = sampler.open("act", [6, 9, 11], (1,))
            start, generation = await turn(session, 20)
            assert set(generation.versions) == {version}
            check(session.ids, start, generation)
        with pytest.raises(AssertionError):
            check(session.ids, start, generation_of(generation, 1))

    run(model, server, scenario)


def generation_of(generation, version):
    return base.Generation(
        generation.ids, generation.logprobs, [version] * len(generation.ids), generation.finish)


def test_tokens_of_a_request_during_a_push_follow_the_weights_of_their_versions(model, server):
    async def scenario(sampler, built):
        sampler._stop_ids = ()
        pushed = asyncio.create_task(sampler.publish({"policy": params_of(1)}, 1))

        async def keep_asking(i):
            """One request after another until the push is through, so that it meets some: with so
            many at a time they are long."""
            own = []
            while not pushed.done():
                session = sampler.open("act", [6 + i % 12, 9, 11], (i, len(own)))
                own.append((session, await turn(session, 240)))
            return own

        for own in await asyncio.gather(*(keep_asking(i) for i in range(96))):
            for session, (start, generation) in own:
                assert len(generation.ids) == 240
                check(session.ids, start, generation)
                found.append(generation.versions)
        await pushed
        met = [versions.count(0) for versions in found if set(versions) == {0, 1}]
        assert met
        print("tokens before the push, of the requests that it met:", met)

    found = []
    run(model, server, scenario)


def test_the_comparison_finds_vllms_own_reload_of_a_tied_head(model, server, monkeypatch):
    """On a CPU it leaves the old head in place and answers 200."""
    post = vllm_client.VllmServer._post

    async def plain(self, path, body=None):
        if path == "/collective_rpc":
            body = {"method": "reload_weights",
                    "kwargs": {"weights_path": body["kwargs"]["directory"]}}
        return await post(self, path, body)

    async def scenario(sampler, built):
        monkeypatch.setattr(vllm_client.VllmServer, "_post", plain)
        with pytest.raises(base.SamplerStop, match="gap_limit"):
            await sampler.publish({"policy": params_of(1)}, 1)
        print(f"gap: {sampler.metrics()['sampler/logprob_gap']:.2f}")

    run(model, server, scenario)


def test_kill_and_restart_in_mid_rollout_lose_and_double_nothing(model, server):
    """The rollouts are those of an undisturbed server, sample by sample."""

    async def scenario(sampler, built):
        config = built.config
        dealt = StreamSource(built.domain.make_stream("train"), 0).take(2)
        context = built.context(1.0)
        expected = await collect(context, dealt, 4, (0, 1))
        calm = sampler.generated_tokens
        working = asyncio.create_task(collect(context, dealt, 4, (0, 1)))
        while sampler.generated_tokens < 1.3 * calm:
            await asyncio.sleep(0.005)
        assert not working.done()
        server.kill()
        await asyncio.sleep(2)
        server.start()
        found = await working
        assert sampler.metrics()["sampler/retries"] > 0
        assert len(found) == 2 * 4 and all(len(r.tasks) == config.env.trials for r in found)
        for one, other in zip(expected, found, strict=True):
            assert one.failure is None and not one.retried
            assert other.failure is None and not other.retried
            for a, b in zip(one.tasks, other.tasks, strict=True):
                for sample, same in ((a.act, b.act), (a.write, b.write)):
                    np.testing.assert_array_equal(sample.ids, same.ids)
                    np.testing.assert_allclose(sample.logprobs, same.logprobs, atol=1e-4)
                    assert same.version in (0, -1)

    run(model, server, scenario)


def test_training_through_a_server_logs_the_gap_and_ends(model, server, tmp_path):
    config = config_of(model, server.url, **{"run_dir": str(tmp_path / "run")})
    assert train.train(config, run_dir.RunDir(tmp_path / "run"))
    lines = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines][-2:] == [1, 2]
    assert lines[-1]["learner/policy/logprob_gap_max"] < 1e-3


def test_sigterm_stops_the_script_and_every_process_of_the_server(server):
    """The last test: afterwards there is no server."""
    server.wait()
    assert server.stop() == 0
    assert server.left() == []
