"""The native sampler against one full forward per conversation, under schedules of every kind.

Sessions arrive, are extended, cancelled, handed over and closed at random. There are more of them
than slots, so some are evicted and computed again. Some open alike and share what was computed.
"""

import functools

import hypothesis
import jax
import pytest
from hypothesis import strategies as st

from tests.sampler.conversations import (
    CHUNKS,
    LLAMA,
    QWEN3,
    QWEN3_5,
    check,
    make_sampler,
    run,
    schedule,
)

MODELS = {"qwen3": QWEN3, "llama": LLAMA, "qwen3_5": QWEN3_5}
# Cases of the property below; slots, devices, and most conversations at once.
CASES = [
    ("qwen3", 3, 1, 10, 70), ("qwen3", 16, 2, 24, 40), ("llama", 16, 1, 24, 45),
    ("qwen3_5", 3, 1, 10, 25), ("qwen3_5", 16, 1, 20, 20),
]


@functools.cache
def sampler_of(name, slots, devices):
    if len(jax.devices()) < devices:
        pytest.skip(f"needs {devices} devices")
    return make_sampler(slots, devices, MODELS[name], shared_prefix=3)


@pytest.mark.parametrize("name, slots, devices, most, cases", CASES)
def test_every_token_has_the_logprob_of_a_full_forward_of_its_version(
        name, slots, devices, most, cases):
    sampler, model = sampler_of(name, slots, devices), MODELS[name]
    traces, done = sampler.traces, []

    @hypothesis.settings(max_examples=cases, deadline=None, database=None)
    @hypothesis.given(seed=st.integers(0, 2**32 - 1), publishes=st.sampled_from([0, 0, 2]))
    def holds(seed, publishes):
        turns = run(schedule(sampler, seed, publishes, model, most))
        for turn in turns:
            check(turn, model)
        done.extend(turns)

    sampler.metrics()
    holds()
    assert len(done) > cases
    assert sampler.traces == traces
    # The schedules did reach what they are meant to.
    assert all(sampler.metrics().values())


@pytest.mark.parametrize("name, slots", [("qwen3", 3), ("qwen3", 16), ("qwen3_5", 3)])
def test_nothing_is_compiled_after_warm_up(name, slots, caplog):
    sampler, model = sampler_of(name, slots, 1), MODELS[name]
    for version in range(3):
        model.params_of(version)
    run(schedule(sampler, 0, 1, model))
    caplog.clear()
    with jax.log_compiles():
        for seed in range(4):
            run(schedule(sampler, seed, 2, model))
    shapes = 1 + len(CHUNKS)
    assert sampler.traces == (shapes if slots < 8 else 2 * shapes)
    assert not [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()]
