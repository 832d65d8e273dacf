"""The native sampler, case by case: greedy, seeds, devices, publish, cancellation, failures."""

import asyncio

import jax
import numpy as np
import pytest
import scipy.stats

from tests.sampler.conversations import (
    BLOCK,
    SLOTS,
    STOP_IDS,
    VOCABULARY,
    Turn,
    check,
    close,
    converse,
    forward_logprobs,
    make_sampler,
    params_of,
    random_ids,
    run,
    take_turn,
)


@pytest.fixture(scope="module")
def shared_sampler():
    return make_sampler()


@pytest.fixture
def sampler(shared_sampler):
    """The module's sampler; a test must leave every slot free and everything compiled."""
    traces = shared_sampler.traces
    yield shared_sampler
    assert shared_sampler.traces == traces

    async def fill():
        sessions = [shared_sampler.open("act", [1], (i,)) for i in range(SLOTS)]
        await asyncio.gather(*(s.generate(1) for s in sessions))
        close(sessions)

    run(fill())


def test_greedy_tokens_are_those_of_decoding_one_at_a_time(sampler):
    rng = np.random.default_rng(0)
    prompts = [random_ids(rng, 1, 14) for _ in range(5)]

    async def generate():
        sessions = [sampler.open("act", p, (0,)) for p in prompts]
        found = await asyncio.gather(*(greedy(s) for s in sessions))
        return found

    async def greedy(session):
        generation = await session.generate(12, temperature=0)
        session.close()
        return generation.ids

    params = params_of(sampler.version)["shared"]
    for prompt, found in zip(prompts, run(generate()), strict=True):
        ids = list(prompt)
        while len(ids) - len(prompt) < 12 and not (ids[len(prompt):] and ids[-1] in STOP_IDS):
            ids.append(int(forward_logprobs(params, ids)[-1].argmax()))
        assert found == ids[len(prompt):]


async def three_turns(sampler, seed, role="act"):
    """A fixed conversation; only its sampled tokens may differ."""
    session = sampler.open(role, [5, 1, 2], seed)
    turns = []
    for _ in range(3):
        turns.append(await take_turn(session, role, 6))
        session.extend([1, 4])
    session.close()
    return turns


def assert_same_turns(a, b):
    for one, other in zip(a, b, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.generation.logprobs, other.generation.logprobs, atol=1e-5)


@pytest.mark.parametrize("crowd", range(4))
def test_what_a_seed_generates_does_not_depend_on_company_or_slot(sampler, crowd):
    alone = run(three_turns(sampler, (7, 0)))

    async def in_company():
        # The crowd arrives first: it takes the first slots, and makes the conversation wait.
        rng = np.random.default_rng(crowd)
        others = [asyncio.create_task(converse(sampler, r, [])) for r in rng.spawn(crowd * 2)]
        await asyncio.sleep(0)
        turns = await three_turns(sampler, (7, 0))
        await asyncio.gather(*others)
        return turns

    assert_same_turns(alone, run(in_company()))


def test_seeds_generate_different_conversations(sampler):
    seen = {tuple(run(three_turns(sampler, (seed, n)))[-1].ids) for seed in (0, 1) for n in (0, 1)}
    assert len(seen) == 4


def test_eight_devices_generate_what_one_device_generates():
    one, eight = make_sampler(slots=8, devices=1), make_sampler(slots=8, devices=8)

    async def crowd(sampler):
        roles = ["act", "judge"] * 6
        return await asyncio.gather(
            *(three_turns(sampler, (i,), role) for i, role in enumerate(roles)))

    for a, b in zip(run(crowd(one)), run(crowd(eight)), strict=True):
        assert_same_turns(a, b)
        for turn in b:
            check(turn)


def test_slots_that_cannot_be_spread_are_refused():
    with pytest.raises(ValueError, match="sampler.slots = 3 .* 2 devices"):
        make_sampler(devices=2)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_samples_follow_the_softmax(sampler, temperature):
    draws, prompt = 1200, [2, 9, 4]

    async def first_token(seed):
        session = sampler.open("judge", prompt, (11, seed))
        generation = await session.generate(1, temperature)
        session.close()
        return generation.ids[0]

    async def all_draws():
        return await asyncio.gather(*(first_token(seed) for seed in range(draws)))

    logprobs = forward_logprobs(params_of(sampler.version)["other"], prompt)[-1]
    expected = draws * np.asarray(jax.nn.softmax(logprobs / temperature), np.float64)
    observed = np.bincount(run(all_draws()), minlength=VOCABULARY)
    # Chi-square wants at least five expected in each cell; the rare tokens share one.
    rare = expected < 5
    cells = [np.append(counts[~rare], counts[rare].sum()) for counts in (observed, expected)]
    assert len(cells[0]) > 5
    cells[1] *= draws / cells[1].sum()
    assert scipy.stats.chisquare(*cells).pvalue > 1e-3


def test_a_generation_open_across_a_publish_records_both_versions(sampler):
    async def generate():
        old = sampler.version
        # No stop token within the first block, so that there is something left to generate.
        for seed in range(20):
            session = sampler.open("act", [1, 2, 3], (seed,))
            before = sampler.generated_tokens
            waiting = asyncio.create_task(take_turn(session, "act", 6 * BLOCK))
            while sampler.generated_tokens == before:
                await asyncio.sleep(0)
            if not waiting.done() and session.ids[-1] not in STOP_IDS:
                # A block may be under way: it is still the old version's.
                sampler.set_params(params_of(old + 1), old + 1)
                turn = await waiting
                session.close()
                if turn.generation.versions[-1] > old:
                    return old, turn
                old = sampler.version
                continue
            await waiting
            session.close()

    old, turn = run(generate())
    check(turn)
    versions = turn.generation.versions
    assert versions[:BLOCK] == [old] * BLOCK and set(versions) == {old, old + 1}
    assert versions.count(old) % BLOCK == 0


def test_a_session_kept_over_a_publish_goes_on_with_the_new_parameters(sampler):
    async def generate():
        session = sampler.open("act", [1, 2, 3], (0,))
        turns = [await take_turn(session, "act", 3)]
        await sampler.publish(params_of(sampler.version + 1), sampler.version + 1)
        session.extend([4])
        turns.append(await take_turn(session, "act", 3))
        session.close()
        return turns

    before, after = run(generate())
    check(before)
    check(after)
    assert set(after.generation.versions) == {before.generation.versions[0] + 1}


def test_a_generation_of_no_tokens_leaves_the_session_as_it_was(sampler):
    async def generate():
        session = sampler.open("act", [1, 2, 3], (0,))
        await session.generate(0)
        turn = await take_turn(session, "act", 3)
        session.close()
        return turn

    check(run(generate()))


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def test_cancelled_tasks_free_their_slots_and_disturb_nobody(sampler):
    async def holding(seed):
        session = sampler.open("act", [1, 2], (seed,))
        try:
            return await take_turn(session, "act", 25)
        finally:
            session.close()

    async def cancel_some():
        before = sampler.generated_tokens
        tasks = [asyncio.create_task(holding(seed)) for seed in range(2 * SLOTS)]
        await until(lambda: sampler.generated_tokens > before)
        # One that runs (if it has not ended by now) and one that waits for a slot.
        tasks[0].cancel()
        tasks[-1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = run(cancel_some())
    assert isinstance(results[-1], asyncio.CancelledError)
    assert len([r for r in results if isinstance(r, Turn)]) >= 2 * SLOTS - 2
    for turn in results[1:-1]:
        check(turn)


def test_a_session_goes_on_after_its_generation_was_cancelled(sampler):
    async def generate():
        session = sampler.open("act", [1, 2, 3], (4,))
        before = sampler.generated_tokens
        task = asyncio.create_task(session.generate(25, temperature=0))
        await until(lambda: sampler.generated_tokens > before)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        turn = await take_turn(session, "act", 3)
        session.close()
        return turn

    check(run(generate()))


def test_closing_a_session_cancels_its_generation(sampler):
    async def generate():
        session = sampler.open("act", [1, 2, 3], (4,))
        task = asyncio.create_task(session.generate(25))
        await asyncio.sleep(0)
        session.close()
        session.close()
        for _ in range(50):
            await asyncio.sleep(0)
        assert task.cancelled()
        with pytest.raises(RuntimeError, match="closed session"):
            await session.generate(1)

    run(generate())


def test_a_failed_device_call_reaches_all_waiters_and_spoils_no_later_token(sampler, monkeypatch):
    step = sampler._step

    def out_of_memory(params, cache, *args):
        jax.tree.map(lambda a: a.delete(), cache)
        monkeypatch.setattr(sampler, "_step", step)
        raise RuntimeError("RESOURCE_EXHAUSTED")

    async def generate():
        # A session between two turns, whose cache is lost as well.
        kept = sampler.open("act", [1, 2, 3, 4, 5], (0,))
        await kept.generate(2)
        monkeypatch.setattr(sampler, "_step", out_of_memory)
        others = [sampler.open("judge", [6, 5], (i,)) for i in range(SLOTS + 2)]
        failures = await asyncio.gather(
            *(s.generate(3) for s in others), return_exceptions=True)
        assert [str(f) for f in failures] == ["RESOURCE_EXHAUSTED"] * len(others)
        retried = await take_turn(others[0], "judge", 3)
        close(others)
        kept.extend([8])
        turns = [retried, await take_turn(kept, "act", 3)]
        kept.close()
        return turns

    for turn in run(generate()):
        check(turn)


def test_a_parent_must_be_a_prefix(sampler):
    async def open_pair():
        parent = sampler.open("act", [1, 2, 3], (0,))
        with pytest.raises(ValueError, match="not a prefix"):
            sampler.open("write", [1, 2], (0,), parent=parent)
        parent.close()

    run(open_pair())


def test_an_empty_session_cannot_generate(sampler):
    with pytest.raises(ValueError, match="at least one prompt token"):
        run(sampler.open("act", [], (0,)).generate(1))


def test_choices_are_made_among_the_allowed_and_disturb_no_neighbour():
    sampler = make_sampler(choices=3)
    allowed, rng = [2, 9, 4], np.random.default_rng(0)
    prompts = [random_ids(rng, 1, 12) for _ in range(6)]

    async def choose(prompt, temperature):
        session = sampler.open("act", prompt, (5,))
        made = await session.generate(1, temperature, allowed)
        session.close()
        return made

    async def generate():
        alone = await three_turns(sampler, (7, 0))
        beside, *made = await asyncio.gather(
            three_turns(sampler, (7, 0)), *(choose(p, t) for p in prompts for t in (0.0, 3.0)))
        return alone, beside, made

    alone, beside, made = run(generate())
    assert_same_turns(alone, beside)
    assert {m.ids[0] for m in made} <= set(allowed)
    for prompt, greedy in zip(prompts, made[::2], strict=True):
        logprobs = forward_logprobs(params_of(0)["shared"], prompt)[-1]
        assert greedy.ids == [max(allowed, key=lambda i: logprobs[i])]
        assert abs(greedy.logprobs[0] - logprobs[greedy.ids[0]]) < 1e-4


def test_more_choices_than_a_sampler_was_made_for_are_refused(sampler):
    session = sampler.open("act", [1], (0,))
    with pytest.raises(ValueError, match="choices = 0"):
        run(session.generate(1, 1.0, [2, 3]))
    session.close()
