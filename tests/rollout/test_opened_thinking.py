"""Templates that open the thinking themselves: what a reply says begins behind its closing tag."""

import pytest

from tests import scripted

BUDGET = 6


@pytest.fixture
def play(monkeypatch):
    """One task of the loop, for an actor and a writer who say these texts."""
    monkeypatch.setattr(scripted.CHAT, "think_opened", True)

    def run(actor, writer):
        config = scripted.small_config(env__trials=1, rollout__memory_tokens=BUDGET)
        (rollout,), _ = scripted.play(
            lambda call: writer if call.role == "write" else actor, config=config)
        return rollout.tasks[0]

    return run


def test_an_action_counts_behind_the_closing_tag_only(play):
    assert play("try pink </think> 0 bank", "").format_errors == {}
    assert play("try pink 0 bank", "").format_errors == {"unclosed_think": 3}


def test_a_memory_begins_behind_the_closing_tag(play):
    written = play("</think> 0 bank", "green large </think> red small").written
    assert (written.text, written.malformed) == ("red small", None)
    written = play("</think> 0 bank", "green large").written
    assert (written.text, written.malformed) == ("", "unclosed_think")


def test_thinking_does_not_count_against_the_budget_of_the_memory(play):
    thought = "green large " * BUDGET
    fits, too_long = "try pink " * (BUDGET // 2), "try pink " * (BUDGET // 2 + 1)
    assert play("</think> 0 bank", f"{thought}</think> {fits}").written.malformed is None
    over = play("</think> 0 bank", f"{thought}</think> {too_long}").written
    assert over.malformed == "over_budget" and over.text == fits.strip()
