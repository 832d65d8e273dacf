"""What the two roles are told: the memory, the task, the outcome, and how to answer."""

import pytest

from rime_jax import prompts
from rime_jax.envs.alchemy import text_full
from rime_jax.memory import HeadedMemory
from tests.scripted import CHAT

FULL = prompts.AlchemyPrompts(trials=10, memory_tokens=300)
COMPACT = prompts.CompactPrompts()
MEMORY, OBSERVATION, OUTCOME = "green large", "0 small blue round", "+15"
TRANSCRIPT = (("environment", OBSERVATION), ("actor", "0 bank"), ("environment", "small +15"))


def text_of(messages):
    return "\n".join(message["content"] for message in messages)


@pytest.mark.parametrize("wording", [FULL, COMPACT], ids=["full", "compact"])
def test_the_actor_reads_its_memory_and_the_observation_once(wording):
    text = text_of(wording.act(MEMORY, OBSERVATION))
    assert text.count(MEMORY) == 1 and text.count(OBSERVATION) == 1
    assert text.index(MEMORY) < text.index(OBSERVATION)


@pytest.mark.parametrize("wording", [FULL, COMPACT], ids=["full", "compact"])
def test_the_writer_reads_memory_transcript_and_outcome_in_order(wording):
    text = text_of(wording.write_afresh(MEMORY, TRANSCRIPT, OUTCOME))
    parts = [MEMORY, *(said for _, said in TRANSCRIPT), OUTCOME]
    places, start = [], 0
    for part in parts:
        start = text.index(part, start)
        places.append(start)
    assert places == sorted(places)


@pytest.mark.parametrize("wording", [FULL, COMPACT], ids=["full", "compact"])
def test_a_writer_that_goes_on_is_told_the_last_message_and_the_outcome(wording):
    text = wording.write_on("small +15", OUTCOME)
    assert "small +15" in text and OUTCOME in text and "rite" in text


def test_the_compact_words_are_all_in_the_vocabulary():
    for messages in (COMPACT.act(MEMORY, OBSERVATION),
                     COMPACT.write_afresh(MEMORY, TRANSCRIPT, OUTCOME)):
        text = text_of(messages)
        assert CHAT.decode(CHAT.text(text)) == text


def test_the_compact_prompt_of_an_empty_memory_begins_with_its_end():
    assert text_of(COMPACT.act("", OBSERVATION)) == f"; {OBSERVATION}"


def test_an_empty_memory_is_said_to_be_empty():
    assert "(empty)" in text_of(FULL.act("", OBSERVATION))
    assert "(empty)" in text_of(FULL.write_afresh("", TRANSCRIPT, OUTCOME))


def test_the_writer_is_told_the_budget_and_the_form_that_counts_as_well_formed():
    asked = FULL.write_on("", "")
    assert "300 tokens" in asked
    headings = tuple(f"## {heading}" for heading in prompts.ALCHEMY_HEADINGS)
    form = HeadedMemory(headings, 1, text_full.COLOURS)
    shown = asked[asked.index(headings[0]) :]
    assert form.parse_items(shown)[1] is None


def test_the_actor_is_not_told_the_rules_that_it_has_to_find_out():
    told = text_of(FULL.act("", OBSERVATION)).lower()
    assert not [w for w in (*text_full.COLOURS, "+15", "-3", "opposite") if w in told]
