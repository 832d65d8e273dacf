"""What the learner is given is what the session saw, and memory is the only channel."""

import numpy as np
import pytest

from rime_jax.judge.lexical import LexicalJudge
from rime_jax.memory import CompactMemory
from rime_jax.rollout.trajectory import Status
from tests.scripted import CHAT, play, small_config, streams_of

# Distinct words, so that a leak from one task to another shows.
MEMORIES = ("green large", "red small try pink", "yellow blue")
REPLIES = ("0 ? green", "1 bank", "0 bank")


def bank_both(call):
    if call.role == "write":
        return MEMORIES[call.position]
    return REPLIES[call.turn]


def contains(ids, part):
    ids, part = list(ids), list(part)
    return any(ids[i : i + len(part)] == part for i in range(len(ids) - len(part) + 1))


@pytest.fixture(scope="module", params=["continue", "fresh"])
def played(request):
    config = small_config(rollout__writer_context=request.param)
    (rollout,), sampler = play(bank_both, config=config)
    return request.param, rollout, sampler


def test_a_rollout_plays_every_task_and_writes_after_each(played):
    _, rollout, _ = played
    assert rollout.failure is None and rollout.retried == {}
    assert [r.task for r in rollout.tasks] == list(rollout.stream.tasks)
    assert [r.turns for r in rollout.tasks] == [3, 3, 3]
    assert [r.written.malformed for r in rollout.tasks] == [None] * 3


def test_the_ids_of_a_sample_are_those_that_the_session_saw(played):
    _, rollout, sampler = played
    for position, record in enumerate(rollout.tasks):
        for role, sample in (("act", record.act), ("write", record.write)):
            (session,) = sampler.sessions(role, position)
            assert sample.ids.tolist() == session.ids and sample.role == role
            assert (sample.group, sample.sibling, sample.position) == (0, 0, position)


def test_the_mask_marks_exactly_the_sampled_ids(played):
    _, rollout, sampler = played
    for position, record in enumerate(rollout.tasks):
        for role, sample in (("act", record.act), ("write", record.write)):
            (session,) = sampler.sessions(role, position)
            mask = np.zeros(len(sample.ids), bool)
            logprobs = np.zeros(len(sample.ids), np.float32)
            for first, made in session.generated:
                mask[first : first + len(made.ids)] = True
                logprobs[first : first + len(made.ids)] = made.logprobs
            np.testing.assert_array_equal(sample.mask, mask)
            np.testing.assert_array_equal(sample.logprobs, logprobs)
            assert sample.version == sampler.version


def test_every_session_is_closed(played):
    assert all(session.closed for session in played[2].opened)


def test_the_writer_goes_on_in_the_actors_conversation_or_has_its_own(played):
    kind, rollout, sampler = played
    for position, record in enumerate(rollout.tasks):
        (writer,) = sampler.sessions("write", position)
        act = record.act.ids.tolist()
        if kind == "continue":
            assert writer.opening[: len(act)] == act
            last = dict(record.transcript)["environment"]
            assert writer.opening[len(act) :] == CHAT.turn(f"{last} write", act[-1])
        else:
            spoken = [text for speaker, text in record.transcript if speaker != "writer"]
            prompt = " ".join(filter(None, [record.memory_before, ";", *spoken, "write"]))
            assert writer.opening == CHAT.opening([{"role": "user", "content": prompt}])


def test_memory_is_the_only_channel_between_tasks(played):
    _, rollout, sampler = played
    assert rollout.tasks[0].memory_before == ""
    for earlier, later in zip(rollout.tasks, rollout.tasks[1:], strict=False):
        assert later.memory_before == earlier.memory_after == earlier.written.text
        (session,) = sampler.sessions("act", later.act.position)
        observation = later.transcript[0][1]
        expected = f"{earlier.memory_after} ; {observation}"
        assert session.opening == CHAT.opening([{"role": "user", "content": expected}])


def test_the_writer_never_reads_a_later_task(played):
    """Its prompt is the same whatever comes after: the streams part at the third task."""
    kind, *_ = played
    config = small_config(rollout__writer_context=kind)
    one, other = streams_of(config, 2)
    mixed = type(one)(one.id, (*one.tasks[:2], other.tasks[2]))
    prompts = []
    for stream in (one, mixed):
        _, sampler = play(bank_both, config=config, streams=[stream])
        prompts.append([s.opening for s in sampler.opened if s.place.position < 2])
    assert prompts[0] == prompts[1]


def test_an_end_of_turn_that_was_not_sampled_is_there_and_not_trained():
    config = small_config(rollout__act_tokens=2)
    (rollout,), sampler = play(lambda c: MEMORIES[0] if c.role == "write" else "0 bank",
                               config=config)
    record = rollout.tasks[0]
    (session,) = sampler.sessions("act", 0)
    first, made = session.generated[0]
    assert made.finish == "length" and CHAT.end_of_turn not in made.ids
    after = first + len(made.ids)
    assert record.act.ids[after] == CHAT.end_of_turn and not record.act.mask[after]
    assert not record.act.logprobs[after]


def test_a_sampled_end_of_turn_stands_once_and_is_trained(played):
    _, rollout, sampler = played
    (session,) = sampler.sessions("act", 0)
    first, made = session.generated[0]
    end = first + len(made.ids) - 1
    ids, mask = rollout.tasks[0].act.ids, rollout.tasks[0].act.mask
    assert ids[end] == CHAT.end_of_turn and mask[end]
    assert ids[end + 1] != CHAT.end_of_turn and not mask[end + 1]


def test_a_judge_sees_the_memories_before_and_after_each_task():
    seen = []

    class Spy(LexicalJudge):
        async def score(self, *memories):
            seen.append(memories)
            return await super().score(*memories)

    (rollout,), _ = play(bank_both, judge=Spy(CompactMemory()))
    assert seen == list(zip(("", *MEMORIES), MEMORIES, strict=False))
    assert all(r.verdict is not None and r.judge_status is None for r in rollout.tasks)


def test_siblings_meet_the_same_tasks_and_have_their_own_memories():
    def script(call):
        return MEMORIES[call.sibling] if call.role == "write" else REPLIES[call.turn]

    rollouts, _ = play(script, siblings=3)
    assert len({tuple(r.task.id for r in rollout.tasks) for rollout in rollouts}) == 1
    for rollout in rollouts:
        assert [r.memory_after for r in rollout.tasks] == [MEMORIES[rollout.sibling]] * 3


@pytest.mark.parametrize("given", ["", "best small blue round"])
def test_a_given_memory_opens_every_task_and_nothing_is_written(given):
    (rollout,), sampler = play(bank_both, given_memory=lambda task, place: given)
    assert [r.memory_before for r in rollout.tasks] == [given] * 3
    for position, record in enumerate(rollout.tasks):
        assert not sampler.sessions("write", position) and not record.write.mask.any()
        (session,) = sampler.sessions("act", position)
        observation = record.transcript[0][1]
        expected = f"{given} ; {observation}"
        assert session.opening == CHAT.opening([{"role": "user", "content": expected}])


def test_thinking_stays_in_its_own_task_and_does_not_reach_the_environment():
    thought = "<think> try pink </think> "

    def script(call):
        return thought + bank_both(call)

    config = small_config(rollout__act_tokens=12, rollout__write_tokens=40,
                          rollout__memory_tokens=30)
    (rollout,), sampler = play(script, config=config)
    (plain,), _ = play(bank_both)
    assert [r.reward for r in rollout.tasks] == [r.reward for r in plain.tasks]
    for record in rollout.tasks:
        assert contains(record.act.ids, CHAT.text(thought)) and record.format_errors == {}
        assert record.written.text == MEMORIES[record.act.position]
    for session in sampler.opened:
        if session.place.role == "act":
            assert not contains(session.opening, CHAT.text("<think>"))


def test_rewards_and_statuses_are_the_environments():
    """A player that banks everything is solved exactly where both stones were the best."""
    (rollout,), _ = play(bank_both)
    for record in rollout.tasks:
        oracle = record.task.payload["oracle"]
        assert record.performance == record.reward / oracle
        solved = record.reward >= oracle
        assert record.status is (Status.SOLVED if solved else Status.FAILED)
