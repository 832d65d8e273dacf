"""What the two roles are told on Codebase Adaptation, and the memory that they are asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax import memory, prompts_codebase
from rime_jax.envs.codebase import interface, sandbox

WORDING = prompts_codebase.CodebasePrompts(1024, 40)
FORMAT = prompts_codebase.CodebaseMemory()
GOOD = """\
## Repository knowledge
- funcy: the sources are in funcy/, the tests in tests/
- run them with `python -m pytest -q tests`
## Lessons and pitfalls
- look for the mirrored branch before editing
- Check whether colls.py has the same mistake
"""
INSTRUCTION = WORDING.write_on("", "")


def text_of(messages):
    return "\n".join(message["content"] for message in messages)


def test_a_good_memory_is_facts_and_leads():
    items, reason = FORMAT.parse_items(GOOD)
    assert reason is None
    assert [item.kind for item in items] == ["fact", "fact", "fact", "lead"]


@pytest.mark.parametrize(("text", "reason"), [
    ("", "empty"),
    (" \n", "empty"),
    ("I know nothing.", "missing_section"),
    (GOOD.split("## Lessons")[0], "missing_section"),
    ("## Lessons" + GOOD.split("## Lessons")[1] + GOOD.split("## Lessons")[0], "missing_section"),
    (GOOD.replace("- look for the mirrored branch before editing\n", ""), "too_few_bullets"),
    ("Here it is:\n" + GOOD, "grammar"),
    (GOOD + "## Other\n- a\n- b\n", "grammar"),
    (GOOD + GOOD, "grammar"),
    (GOOD + "- <returncode>0</returncode>\n", "scaffold"),
    (GOOD + "- it printed <output>\n", "scaffold"),
    (GOOD + "- the last command:\n  ```bash\n  ls\n  ```\n", "scaffold"),
    (GOOD + f"- submit with echo {interface.SENTINEL}\n", "scaffold"),
    ("[environment]\n" + GOOD, "scaffold"),
    (GOOD + "[actor]\n", "scaffold"),
])
def test_every_fault_has_its_reason(text, reason):
    assert FORMAT.parse_items(text)[1] == reason


def test_the_instruction_given_back_is_no_memory():
    headings = f"## {prompts_codebase.HEADINGS[0]}"
    given_back = INSTRUCTION[INSTRUCTION.index(headings):]
    assert FORMAT.parse_items(given_back)[1] == "copied"
    bullets = [line for line in given_back.splitlines() if line.startswith("- ")]
    assert len(bullets) == 2
    for bullet in bullets:
        assert FORMAT.parse_items(GOOD + bullet.upper())[1] == "copied"
        assert FORMAT.parse_items(GOOD + bullet.replace(" ", "\n  "))[1] == "copied"


def test_a_memory_may_quote_commands_and_code():
    quoted = GOOD + "- tests of one file:\n  ```\n  python -m pytest tests/test_colls.py\n  ```\n"
    assert FORMAT.parse_items(quoted)[1] is None


@given(st.text(max_size=300) | st.lists(st.sampled_from(
    [*GOOD.splitlines(), "<output>", "```bash", "```", "", "## Other"])).map("\n".join))
def test_any_text_is_read_without_an_error(text):
    items, reason = FORMAT.parse_items(text)
    assert reason is None or isinstance(reason, str)
    if reason is None:
        assert len(items) >= 2 * prompts_codebase.MIN_BULLETS
        assert not [m for m in ("<returncode>", "<output>", "[actor]") if m in text]


# What ends a line somewhere: a quotation that is marked by lines must mark them all.
breaks = st.sampled_from(["\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\n\n"])


@given(st.lists(st.text(max_size=20) | st.just("The issue:") | breaks).map("".join))
def test_no_memory_can_pass_for_the_prompt_around_it(document):
    for messages in (WORDING.act(document, "It fails."),
                     WORDING.write_afresh(document, [("environment", "It fails.")], "FAILED")):
        text = text_of(messages)
        empty = text_of(WORDING.act("", "It fails.") if messages[0]["role"] == "system" else
                        WORDING.write_afresh("", [("environment", "It fails.")], "FAILED"))
        own = [line for line in text.splitlines() if not line.startswith("| ")]
        assert [line for line in empty.splitlines() if line != "(empty)"] == [
            line for line in own if line != "(empty)"]
        assert "(empty)" in own or document


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1))
def test_the_memory_stands_in_the_prompt_word_for_word(line):
    text = text_of(WORDING.act(f"{line}\n{line}", "It fails."))
    assert f"| {line}\n| {line}" in text


def test_an_empty_memory_is_said_to_be_empty():
    assert "(empty)" in text_of(WORDING.act("", "x"))
    assert "(empty)" in text_of(WORDING.write_afresh("", [], ""))


def test_the_actor_is_told_where_it_is_how_to_act_and_how_to_submit():
    text = text_of(WORDING.act(GOOD, "Zipping stops too early."))
    for part in (sandbox.WORKDIR, "exactly one command", "40 turns", "Zipping stops too early.",
                 f"```bash\necho {interface.SENTINEL}\n```"):
        assert part in text
    shown = interface.parse(text[text.rindex("```bash"):].split("Your memory")[0])
    done, _ = interface.submitted(
        shown.command, sandbox.Result(interface.SENTINEL + "\n", 0, "done", 0, 0.1))
    assert done


def test_the_actor_is_told_the_turns_that_it_has():
    assert "You have 7 turns" in text_of(prompts_codebase.CodebasePrompts(1024, 7).act("", "x"))


def test_the_writer_reads_memory_transcript_and_outcome_in_order():
    transcript = (("environment", "the issue"), ("actor", "the command"))
    text = text_of(WORDING.write_afresh("- one fact", transcript, "FAILED: no tracked file."))
    places = [text.index(part) for part in (
        "| - one fact", "[environment]\nthe issue", "[actor]\nthe command", "FAILED", "## Repo")]
    assert places == sorted(places)


def test_a_writer_that_goes_on_is_told_the_outcome_the_budget_and_the_form():
    text = WORDING.write_on("Turns left: 3", "PASSED: all tests pass.")
    assert text.index("Turns left: 3") < text.index("PASSED")
    assert "1024 tokens" in text and "at least 2 bullets" in text
    for heading in prompts_codebase.HEADINGS:
        assert f"## {heading}" in text
    assert interface.SENTINEL not in text  # What it reads last is what it would copy.


def test_two_memories_of_one_repository_can_be_compared():
    before, _ = FORMAT.parse_items(GOOD)
    after, _ = FORMAT.parse_items(GOOD.replace("- Check whether colls.py has the same mistake",
                                               "- colls.py had the same mistake"))
    assert len(memory.diff(before, after).kept) == 3
