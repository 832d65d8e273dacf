"""Where a generation ends, to the token: a policy that counts makes every end predictable."""

import asyncio
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rime_jax.sampler import native

BLOCK = 4


@dataclasses.dataclass(frozen=True)
class Counting:
    """A policy that is certain of the successor of the last token; its cache holds nothing."""

    vocab_size: int = 24
    dtype: Any = jnp.float32
    cuts: bool = True

    def shapes(self):
        return {"scale": jax.ShapeDtypeStruct((), jnp.float32)}

    def logical_axes(self):
        return {"scale": ()}

    def init_cache(self, slots, tokens):
        return jnp.zeros((slots, tokens))

    def extend(self, params, cache, tokens, start, count, rows=None):
        return jax.nn.one_hot((tokens + 1) % self.vocab_size, self.vocab_size), cache

    def logits(self, params, hidden):
        return hidden * params["scale"]


@pytest.fixture(scope="module")
def sampler():
    sampler = native.NativeSampler(
        # 99 and -1 are ids of no token.
        Counting(), {"act": "policy"}, (20, 99, -1), slots=1, context_tokens=32, decode_block=BLOCK,
        prefill_chunks=(2, 8), devices=jax.devices()[:1])
    sampler.set_params({"policy": {"scale": 1e3}}, 0)
    return sampler


# The prompts count up to `last`; 20 is the stop id, and 32 tokens fit.
@pytest.mark.parametrize("length, last, max_new_tokens, ids, finish", [
    (1, 17, 3, [18, 19, 20], "stop"),
    (1, 17, 2, [18, 19], "length"),
    (1, 19, 1, [20], "stop"),
    (1, 5, 1, [6], "length"),
    (1, 5, 9, [6, 7, 8, 9, 10, 11, 12, 13, 14], "length"),
    (1, 5, BLOCK, [6, 7, 8, 9], "length"),
    (29, 5, 9, [6, 7, 8], "context"),
    (29, 5, 3, [6, 7, 8], "length"),
    (29, 17, 9, [18, 19, 20], "stop"),
    (31, 5, 9, [6], "context"),
    (31, 19, 9, [20], "stop"),
    (32, 5, 9, [], "context"),
    (40, 5, 9, [], "context"),
    (1, 5, 0, [], "length"),
])
def test_generation_ends_exactly_at(sampler, length, last, max_new_tokens, ids, finish):
    prompt = [1] * (length - 1) + [last]

    async def generate():
        session = sampler.open("act", prompt, (0,))
        generation = await session.generate(max_new_tokens)
        assert session.ids == prompt + generation.ids
        session.close()
        return generation

    generation = asyncio.run(generate())
    assert (generation.ids, generation.finish) == (ids, finish)
