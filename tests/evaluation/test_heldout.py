"""Who plays what on held-out streams, and what each condition shows to the policy."""

import asyncio
import dataclasses

import numpy as np
import pytest

from rime_jax import domains
from rime_jax.envs.alchemy import oracle
from rime_jax.evaluation import heldout, numbers, protocols
from tests.evaluation import games
from tests.scripted import CHAT, small_config

STREAMS, ROLLOUTS, TRIALS = 6, 2, 3


def alchemy(reply=None, **options):
    """Parts of the small game, and the sampler of a policy."""
    config = small_config(**options)
    sampler = games.Reader(reply or bank, chat=CHAT)
    return games.built(
        sampler, domains.make(config), env__trials=TRIALS, eval__streams=STREAMS,
        eval__rollouts=ROLLOUTS, rollout__memory_tokens=22, rollout__write_tokens=24, **options)


def bank(session):
    """A player that banks; the first sibling keeps a memory, the other's is broken."""
    if session.place.role == "write":
        return "green large" if session.place.sibling == 0 else "green green"
    return ("0 bank", "1 bank")[len(session.generated)]


def play(built, **values):
    return asyncio.run(protocols.play(built, built.config.eval.rollouts, **values))


def test_floors_score_what_their_players_score():
    """Bank-only by its definition under hidden values: the starting stones' worth."""
    built = alchemy()
    found = heldout.floors(built)
    assert set(found) == {"random actions", "bank only"}
    rules = domains.alchemy_rules(built.config.env)
    for s, stream in enumerate(heldout.held_out_streams(built)):
        for t, task in enumerate(stream.tasks):
            payload = task.payload
            worth = sum((-3, -1, 1, 15)[corner.bit_count()] for corner in payload["trial"].stones)
            best = oracle.best_score(payload["chemistry"], payload["trial"], rules)
            assert found["bank only"][s, 0, t] == pytest.approx(worth / best)


def test_held_out_streams_depend_on_the_evaluations_options_alone():
    built = alchemy()

    def streams_with(**values):
        config = small_config(eval__streams=STREAMS, **values)
        return heldout.held_out_streams(dataclasses.replace(
            built, config=config, domain=domains.make(config)))

    same = streams_with(seed=5, name="other", learner__lr=1.0)
    assert same == heldout.held_out_streams(built) == heldout.held_out_streams(built)
    assert streams_with(eval__seed=4) != same
    train = built.domain.make_stream("train")
    dealt = {train(i, np.random.default_rng((0, i))).info["chemistry"] for i in range(500)}
    assert not dealt & {s.info["chemistry"] for s in same}


def test_every_condition_plays_the_same_streams_with_the_memory_it_names():
    built = alchemy()
    played = play(built)
    tasks = STREAMS * ROLLOUTS * TRIALS
    own, blank, true = ([s for s in built.sampler.opened if s.label == label] for label in range(3))
    assert len(built.sampler.opened) == len(own) + len(blank) + len(true)
    assert len(own) == 2 * tasks and len(blank) == len(true) == tasks
    assert {s.place.role for s in own} == {"act", "write"}
    assert {s.place.role for s in (*blank, *true)} == {"act"}
    held_out = heldout.held_out_streams(built)
    for sessions, memory_of in ((blank, lambda task: ""), (true, built.domain.true_memory)):
        for session in sessions:
            task = held_out[session.place.group].tasks[session.place.position]
            memory = CHAT.text(memory_of(task))
            assert session.opening[: len(memory)] == memory
            assert CHAT.decode(session.opening[len(memory) : len(memory) + 1]) == ";"
    # What banks at once scores the same however much it knows.
    np.testing.assert_array_equal(played.with_memory, played.stateless)
    np.testing.assert_array_equal(played.with_memory, played.true_memory)
    assert played.with_memory.shape == (STREAMS, ROLLOUTS, TRIALS) and played.lost == 0


def test_facts_are_those_of_the_last_memory():
    built = alchemy()
    truth = [built.domain.true_memory(s.tasks[0]) for s in heldout.held_out_streams(built)]
    right = np.array(["green large" in memory for memory in truth]) / 7
    np.testing.assert_allclose(play(built).facts, np.stack([right, np.zeros(STREAMS)], axis=1))


def test_facts_are_those_of_the_memory_that_stands():
    """The truth is written once, and the malformed memories that follow are not taken over."""
    built = alchemy(rollout__on_malformed="keep")
    truth = [built.domain.true_memory(s.tasks[0]) for s in heldout.held_out_streams(built)]

    def write(session):
        if session.place.role == "act":
            return bank(session)
        return "bank bank" if session.place.position else truth[session.place.group]

    built.sampler.reply = write
    np.testing.assert_allclose(play(built).facts, 1)


def test_a_rollout_lost_to_a_failure_is_counted_and_left_out():
    def failing(session):
        if session.place.role == "write" and session.place.group == 2 and session.place.sibling:
            return ConnectionError()
        return bank(session)

    played, whole = play(alchemy(failing)), play(alchemy())
    assert played.lost == 1 and np.isnan(played.with_memory[2, 1]).all()
    np.testing.assert_allclose(numbers.statistics(played)["performance"],
                               numbers.statistics(whole)["performance"])


def test_intervals_of_training_curves_and_of_the_table_have_the_same_means():
    built = alchemy()
    played = play(built)
    row = protocols.results({"initial": played}, built)["policies"]["initial"]
    curves = protocols.curves(played)
    assert curves["performance"] == pytest.approx(row["performance"][0])
    assert set(curves) == {"performance", "stateless", "gain", "improvement", "true_memory",
                           "correct_facts"}
