"""The in-context scaffold: earlier tasks stay as they were sampled, the oldest are dropped."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax import domains, prompts, prompts_codebase
from rime_jax.policy import characters
from rime_jax.rollout import collect, history, loop
from rime_jax.rollout.trajectory import Status
from rime_jax.sampler import messages
from tests import scripted
from tests.evaluation import games
from tests.scripted import CHAT

WORDINGS = {
    "compact": prompts.CompactPrompts(),
    "alchemy": prompts.AlchemyPrompts(10, 100),
    "codebase": prompts_codebase.CodebasePrompts(100, 6),
}
REPLIES = ("0 ? green", "1 bank", "0 bank")


def reply(session):
    """The next one of the task: a session may begin in the middle of it."""
    task = CHAT.decode(session.ids).split(";")[-1]
    return REPLIES[sum(text in task for text in REPLIES)]


def play(reply=reply, context_tokens=4000, **options):
    """The tasks of one stream of the small game in one conversation, and the sampler."""
    config = scripted.small_config(env__trials=6, **options)
    sampler = games.Reader(reply, context_tokens, CHAT)
    context = loop.Context(
        sampler=sampler, judge=None, domain=domains.make(config), chat=CHAT,
        options=config.rollout, judge_timeout_s=None, temperature=1.0, scaffold="in_context")
    (rollout,) = asyncio.run(collect.collect(context, scripted.streams_of(config), 1, (3,)))
    assert rollout.failure is None and len(rollout.tasks) == 6
    return rollout.tasks, sampler


def said(record):
    """What a task sampled."""
    return record.act.ids[record.act.mask].tolist()


def test_every_earlier_task_stands_in_the_conversation_as_it_was_sampled():
    tasks, sampler = play()
    assert {session.place.role for session in sampler.opened} == {"act"}
    for before, after in zip(tasks, tasks[1:], strict=False):
        grown = after.act.ids.tolist()
        assert grown[: len(before.act.ids)] == before.act.ids.tolist()
        assert CHAT.decode(grown).count(REPLIES[0]) == after.act.position + 1
    for record in tasks:
        assert (record.memory_before, record.memory_after) == ("", "")
        assert not record.write.mask.any()


def test_the_mask_marks_only_what_the_task_itself_sampled():
    for record in play()[0]:
        replies = [text for speaker, text in record.transcript if speaker == "actor"]
        assert CHAT.decode(said(record)) == " ".join(replies)
        assert (record.act.logprobs[record.act.mask] < 0).all()
        assert not record.act.logprobs[~record.act.mask].any()


@pytest.mark.parametrize("context_tokens", [60, 90, 120])
def test_a_full_context_loses_its_oldest_tasks_and_nothing_else(context_tokens):
    tasks, sampler = play(context_tokens=context_tokens)
    whole, _ = play()
    # What is sampled does not depend on it, and so no task ends for want of room.
    assert [said(a) for a in tasks] == [said(b) for b in whole]
    assert all(record.status is not Status.CONTEXT_LIMIT for record in tasks)
    for short, long in zip(tasks, whole, strict=True):
        ids = short.act.ids.tolist()
        assert len(ids) <= context_tokens
        # Behind the opening everything is the end of the whole conversation.
        opening = CHAT.decode(ids).split(REPLIES[0])[0]
        assert CHAT.decode(long.act.ids.tolist()).endswith(
            CHAT.decode(ids)[len(opening):]) and opening.startswith(";")
    assert len(tasks[-1].act.ids) < len(whole[-1].act.ids)


def test_tokens_that_follow_a_dropped_task_have_randomness_of_their_own():
    """Places in the conversation move, and each token is drawn by its place."""
    _, sampler = play(context_tokens=90)
    seeds = [session.seed for session in sampler.opened]
    assert len(seeds) > 6 and len(set(seeds)) == len(seeds)
    assert all(session.closed for session in sampler.opened)


def test_a_task_that_alone_fills_the_context_ends_there():
    tasks, _ = play(lambda session: "0 ? green", context_tokens=40)
    assert {record.status for record in tasks} == {Status.CONTEXT_LIMIT}


texts = st.text(alphabet="ab .\n", min_size=1, max_size=12)


@pytest.mark.parametrize("chat", [
    games.byte_chat(), messages.MessageTokens(characters.byte_tokenizer())])
@pytest.mark.parametrize("domain", WORDINGS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(texts, texts, texts, texts), max_size=4), texts,
       st.integers(0, 6000))
def test_the_most_of_the_newest_tasks_that_fit_are_kept(chat, domain, played, observation, room):
    wording = WORDINGS[domain]
    past = [history.Past(opened, (*chat.text(reply), chat.end_of_turn), ended, outcome)
            for opened, reply, ended, outcome in played]
    ids, kept = history.conversation(chat, wording, past, observation, room)
    assert kept == tuple(past[len(past) - len(kept):])

    def built(tasks):
        """The whole conversation from the first of these tasks on."""
        openings = [task.observation for task in tasks] + [observation]
        made = chat.opening(wording.in_context(openings[0]))
        for task, following in zip(tasks, openings[1:], strict=True):
            made += task.ids
            made += chat.turn(wording.next_task(task.ended, task.outcome, following),
                              chat.end_of_turn)
        return made

    assert ids == built(kept)
    assert len(ids) <= room or not kept
    if len(kept) < len(past):
        assert len(built(past[len(past) - len(kept) - 1:])) > room


def test_a_service_gets_the_tasks_as_turns_of_one_conversation():
    chat = messages.MessageTokens(characters.byte_tokenizer())
    past = [history.Past("first", (*chat.text("a"), chat.end_of_turn), "", "PASSED")]
    ids, _ = history.conversation(chat, WORDINGS["codebase"], past, "second", 10_000)
    found = chat.messages(ids)
    assert [m["role"] for m in found] == ["system", "user", "assistant", "user"]
    assert found[2]["content"] == "a"
    assert "PASSED" in found[3]["content"] and found[3]["content"].endswith("second")
