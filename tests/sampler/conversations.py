"""Random conversations with a native sampler, and what must hold for every one of their turns."""

import asyncio
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rime_jax.policy import qwen3, qwen3_5
from rime_jax.sampler import base, native
from tests.policy.conditioning import slow_decays

VOCABULARY, CONTEXT, SLOTS, BLOCK, CHUNKS = 24, 32, 3, 4, (2, 8)
STOP_IDS = (3, 7)
# `act` and `write` share a parameter set, `judge` has another.
ROLE_SETS = {"act": "shared", "write": "shared", "judge": "other"}
TEMPERATURES = (0.0, 0.5, 1.0, 1.7)


@dataclasses.dataclass(frozen=True)
class Model:
    """A small policy with three pairs of parameter sets, and its full forward."""

    policy: Any
    context: int = CONTEXT

    @functools.cache  # noqa: B019 (three of them, for the whole session)
    def params_of(self, version):
        """The two parameter sets that are published as `version`; three pairs take turns."""
        first = 2 * (version % 3)
        return {name: slow_decays(self.policy.init(jax.random.key(first + i)))
                for i, name in enumerate(("shared", "other"))}

    @functools.cached_property
    def _forward(self):
        @jax.jit
        def forward(params, ids_T):
            positions = jnp.arange(self.context)[None]
            hidden = self.policy.forward(params, ids_T[None], positions, jnp.ones_like(positions))
            return jax.nn.log_softmax(self.policy.logits(params, hidden)[0])

        return forward

    def forward_logprobs(self, params, ids):
        """Log-probabilities [T, V] of what follows each of `ids`, by one full forward."""
        padded = np.zeros(self.context, np.int32)
        padded[: len(ids)] = ids
        return np.asarray(self._forward(params, padded))[: len(ids)]


_SIZES = dict(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_attention_heads=4,
              num_key_value_heads=2, head_dim=8, initializer_range=0.4)
QWEN3 = Model(qwen3.Qwen3(qwen3.Qwen3Config(num_hidden_layers=2, **_SIZES)))
# Longer than what is read whole from a cache (attention._SHORT_CACHE).
LLAMA = Model(qwen3.Qwen3(qwen3.Qwen3Config(num_hidden_layers=2, qk_norm=False, **_SIZES)), 136)
QWEN3_5 = Model(qwen3_5.Qwen3_5(qwen3_5.Qwen3_5Config(
    num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
    linear_value_head_dim=8, **_SIZES)))
params_of, forward_logprobs = QWEN3.params_of, QWEN3.forward_logprobs


def make_sampler(slots=SLOTS, devices=1, model=QWEN3, **options):
    sampler = native.NativeSampler(
        model.policy, ROLE_SETS, STOP_IDS, slots=slots, context_tokens=model.context,
        decode_block=BLOCK, prefill_chunks=CHUNKS, devices=jax.devices()[:devices], **options)
    sampler.set_params(model.params_of(0), 0)
    sampler.warm_up()
    return sampler


def run(coroutine):
    """A scheduler that forgets a waiter fails the test instead of hanging it."""
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def close(sessions):
    for session in sessions:
        session.close()


@dataclasses.dataclass
class Turn:
    """One `generate` call as it happened; `start` is where its tokens lie in `ids`."""

    set_name: str
    ids: list[int]
    start: int
    max_new_tokens: int
    temperature: float
    generation: base.Generation


async def take_turn(session, role, max_new_tokens, temperature=1.0):
    start = len(session.ids)
    generation = await session.generate(max_new_tokens, temperature)
    assert session.ids[start:] == generation.ids
    return Turn(ROLE_SETS[role], list(session.ids), start, max_new_tokens, temperature, generation)


def check(turn, model=QWEN3):
    """Every token's log-probability, version and greedy choice, and the reason of the end."""
    g = turn.generation
    assert len(g.ids) == len(g.logprobs) == len(g.versions)
    assert g.versions == sorted(g.versions)
    for version in set(g.versions):
        logprobs = model.forward_logprobs(
            model.params_of(version)[turn.set_name], turn.ids)
        for i, (token, reported, made_by) in enumerate(
                zip(g.ids, g.logprobs, g.versions, strict=True)):
            if made_by == version:
                of_all = logprobs[turn.start + i - 1]
                assert abs(of_all[token] - reported) < 1e-4
                if turn.temperature == 0:
                    assert of_all[token] > of_all.max() - 1e-4
    assert not set(g.ids[:-1]) & set(STOP_IDS)
    if g.ids and g.ids[-1] in STOP_IDS:
        assert g.finish == "stop"
    elif len(g.ids) == turn.max_new_tokens:
        assert g.finish == "length"
    else:
        assert (g.finish, len(turn.ids)) == ("context", model.context)


async def converse(sampler, rng, turns, opening=()):
    """A conversation of random turns; one may be cancelled, or go on in another role."""
    role = rng.choice(["act", "judge"])
    ids = [*opening, *random_ids(rng, 1, 12)]
    session = sampler.open(role, ids, rng.integers(0, 2**32, 3).tolist())
    room = sampler.context_tokens
    for _ in range(rng.integers(1, 5)):
        for _ in range(rng.integers(0, 6)):
            await asyncio.sleep(0)
        max_new_tokens = int(rng.integers(1, 10))
        temperature = float(rng.choice(TEMPERATURES))
        if rng.random() < 0.1:
            await cancelled(session, rng, max_new_tokens)
        turns.append(await take_turn(session, role, max_new_tokens, temperature))
        if rng.random() < 0.3:
            role = rng.choice(list(ROLE_SETS))
            ids = session.ids + random_ids(rng, 0, 4)
            session = sampler.open(role, ids[:room], (int(rng.integers(100)),), parent=session)
        else:
            session.extend(random_ids(rng, 0, 7)[: room - len(session.ids)])
    session.close()


async def cancelled(session, rng, max_new_tokens):
    """A generation that is cancelled at some moment leaves the session as it was."""
    before = list(session.ids)
    task = asyncio.create_task(session.generate(max_new_tokens))
    for _ in range(rng.integers(0, 30)):
        await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert session.ids == before


def random_ids(rng, low, high):
    return rng.integers(0, VOCABULARY, rng.integers(low, high)).tolist()


async def schedule(sampler, seed, publishes, model=QWEN3, most=10):
    """Turns of some conversations at once, while new parameters may come at any moment.

    Some conversations open with the same ids, as siblings do.
    """
    rng = np.random.default_rng(seed)
    turns = []
    openings = [(), random_ids(rng, 4, 14), random_ids(rng, 4, 14)]

    async def publish():
        for _ in range(publishes):
            for _ in range(rng.integers(1, 12)):
                await asyncio.sleep(0)
            version = sampler.version + 1
            await sampler.publish(model.params_of(version), version)

    conversations = [
        converse(sampler, r, turns, openings[int(rng.integers(3))])
        for r in rng.spawn(int(rng.integers(1, most)))]
    await asyncio.gather(publish(), *conversations)
    return turns
