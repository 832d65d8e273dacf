"""Replies without an action, contexts that end, memories that are malformed: all of it is the
policy's own, so it trains."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax.envs.alchemy import text_compact
from rime_jax.memory import CompactMemory
from rime_jax.rollout.metrics import rollout_metrics
from rime_jax.rollout.trajectory import INFRASTRUCTURE, Status
from tests.scripted import CHAT, play, small_config


def replies(write, act):
    """A script of the same reply again and again."""
    return lambda call: write if call.role == "write" else act


def metrics_of(rollouts):
    return rollout_metrics(rollouts, CompactMemory().parse_items)


@pytest.mark.parametrize(("reply", "reason"), [
    ("bank bank bank", "no_action"),
    ("", "empty_reply"),
    ("<think> 0 bank", "unclosed_think"),
    ("<think> 0 bank </think>", "empty_reply"),
    ("0 ? green 0 ? green 0 ?", "no_action"),
])
def test_replies_without_an_action_end_the_task_in_format_errors(reply, reason):
    act = replies(write="green large", act=reply)
    rollouts, _ = play(act)
    for record in rollouts[0].tasks:
        assert record.status is Status.FORMAT_ERRORS
        assert record.format_errors == {reason: 3} and record.turns == 3
        assert record.reward == 0 and record.act.mask.any()
    found = metrics_of(rollouts)
    assert found["status/format_errors"] == 1 and found[f"format_errors/{reason}"] == 9
    assert found["format_errors/per_turn"] == 1 and found["failures/env_crash"] == 0


def test_format_errors_apart_from_each_other_do_not_end_a_task():
    def mixed(call):
        if call.role == "write":
            return ""
        return ("bank", "", "0 ? green", "bank", "", "0 ? red")[call.turn]

    (rollout,), _ = play(mixed)
    for record in rollout.tasks:
        assert record.turns == 6 and record.status is Status.OUT_OF_TURNS
        assert record.format_errors == {"no_action": 2, "empty_reply": 2}


def test_a_reply_cut_by_its_length_is_read_as_it_is():
    config = small_config(rollout__act_tokens=2)
    cut = replies(write="", act="0 ? green")
    (rollout,), _ = play(cut, config=config)
    assert all(r.status is Status.FORMAT_ERRORS for r in rollout.tasks)
    assert all(r.format_errors == {"no_action": 3} for r in rollout.tasks)


def first_prompt(config):
    _, sampler = play(replies(write="", act="end"), config=config)
    return len(sampler.opened[0].opening)


@pytest.mark.parametrize("room", [1, 3, 4, 5, 9])
def test_a_context_that_ends_in_mid_task_is_a_trained_status(room):
    config = small_config()
    context = first_prompt(config) + room
    loops = replies(write="", act="0 ? green")
    (rollout,), sampler = play(loops, config=config, context_tokens=context)
    record = rollout.tasks[0]
    assert rollout.failure is None and len(rollout.tasks) == 3
    assert record.status is Status.CONTEXT_LIMIT
    assert len(record.act.ids) <= context and record.act.mask.any()
    assert all(len(s.ids) <= context for s in sampler.opened)
    assert metrics_of([rollout])["status/context_limit"] == 1


@pytest.mark.parametrize("kind", ["continue", "fresh"])
def test_no_room_for_the_writer_is_a_malformed_memory_and_the_old_one_stays(kind):
    """The first task leaves room for the memory's words but not for its end of turn; the later
    ones begin with the memory and leave none."""
    config = small_config(rollout__writer_context=kind)
    memory = "green large red small"
    end = replies(write=memory, act="end")
    context = first_prompt(config) + len(memory.split()) + {"continue": 4, "fresh": 2}[kind]
    (rollout,), _ = play(end, config=config, context_tokens=context)
    first, second, third = rollout.tasks
    assert first.written.malformed == "truncated" and rollout.failure is None
    assert second.written.malformed == third.written.malformed == "context_limit"
    assert first.memory_after == second.memory_after == third.memory_after == memory
    assert not second.write.mask.any() and second.status is Status.FAILED
    assert metrics_of([rollout])["memory/malformed/context_limit"] == pytest.approx(2 / 3)


LONG = " ".join(["green large"] * 12)


@pytest.mark.parametrize(("reply", "reason", "replaced"), [
    (LONG[: len("green large ") * 11 + 5], "over_budget", " ".join(["green large"] * 11)),
    (LONG + " red large", "over_budget", " ".join(["green large"] * 11)),
    ("<think> green large", "unclosed_think", ""),
    ("green green", "grammar", "green green"),
])
@pytest.mark.parametrize("on_malformed", ["replace", "keep"])
def test_a_malformed_memory_has_its_reason_and_the_configured_consequence(
    on_malformed, reply, reason, replaced
):
    config = small_config(rollout__on_malformed=on_malformed)

    def write(call):
        if call.role == "act":
            return "end"
        return "red small" if call.position == 0 else reply

    (rollout,), _ = play(write, config=config)
    assert [r.written.malformed for r in rollout.tasks] == [None, reason, reason]
    expected = replaced if on_malformed == "replace" else "red small"
    assert rollout.tasks[1].memory_after == rollout.tasks[2].memory_before == expected
    assert len(CHAT.text(expected)) <= config.rollout.memory_tokens
    assert rollout.tasks[1].write.mask.any()
    assert metrics_of([rollout])[f"memory/malformed/{reason}"] == pytest.approx(2 / 3)


def test_an_empty_memory_is_well_formed_in_the_compact_grammar():
    (rollout,), _ = play(replies(write="", act="end"))
    for record in rollout.tasks:
        assert record.written.malformed is None and record.memory_after == ""
        assert record.write.mask.sum() == 1  # its end of turn


FIRST_PROMPT = first_prompt(small_config())
TEXTS = st.lists(st.sampled_from((*text_compact.WORDS, "<think>", "</think>")), max_size=30)


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(TEXTS.map(" ".join), min_size=1, max_size=6), room=st.integers(1, 90),
       kind=st.sampled_from(["continue", "fresh"]), keep=st.booleans())
def test_whatever_the_policy_says_the_rollout_is_whole_and_its_tokens_are_accounted_for(
    texts, room, kind, keep
):
    config = small_config(rollout__writer_context=kind,
                          rollout__on_malformed="keep" if keep else "replace")
    said = []

    def script(call):
        said.append(call)
        return texts[len(said) % len(texts)]

    context = FIRST_PROMPT + room
    (rollout,), sampler = play(script, config=config, context_tokens=context)
    assert rollout.failure is None and len(rollout.tasks) == 3
    assert all(s.closed and len(s.ids) <= context for s in sampler.opened)
    for record in rollout.tasks:
        assert record.status not in INFRASTRUCTURE
        assert len(CHAT.text(record.memory_after)) <= config.rollout.memory_tokens
        for sample in (record.act, record.write):
            sessions = sampler.sessions(sample.role, sample.position)
            sampled = [i for s in sessions for _, made in s.generated for i in made.ids]
            assert sample.ids[sample.mask].tolist() == sampled
            assert not sample.logprobs[~sample.mask].any()
            assert (sample.logprobs[sample.mask] < 0).all()
            assert sample.version == (sampler.version if sampled else -1)
