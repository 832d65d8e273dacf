"""Properties of the lexical judge."""

import asyncio

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rime_jax.judge.base import CRITERIA, Verdict
from rime_jax.judge.lexical import LexicalJudge, judge_items
from rime_jax.memory import CompactMemory, Item

COLOURS = ("green", "red", "yellow", "orange", "pink", "turquoise")
FACTS = st.dictionaries(
    st.sampled_from(COLOURS), st.sampled_from(("small", "large", "blue")), max_size=6,
).map(lambda facts: [Item("fact", key, value) for key, value in facts.items()])
LEADS = st.lists(
    st.sampled_from(COLOURS).map(lambda key: Item("lead", key, "try")), max_size=2, unique=True,
)
MEMORIES = st.builds(lambda facts, leads: facts + leads, FACTS, LEADS)
ANY_ITEMS = st.lists(st.builds(
    Item, st.sampled_from(["fact", "lead", "note"]), st.sampled_from(COLOURS),
    st.sampled_from(["small", "large"]),
), max_size=8)


def score(before, after):
    return asyncio.run(LexicalJudge(CompactMemory()).score(before, after))


@pytest.mark.parametrize("before, after, criteria", [
    ("", "", (0, 0, 0, 0)),
    ("", "green small", (1, 0, 0, 1)),
    ("", "green small red large pink blue", (2, 0, 0, 2)),
    ("", "green small try red", (1, 0, 2, 2)),
    ("green small", "green large", (0, 1, 0, 0)),
    ("green small red large", "green large red small", (0, 2, 0, 0)),
    ("green small", "red small", (1, 0, 0, 0)),
    ("green small", "", (0, 0, 0, 0)),
    ("green small", "try green", (0, 0, 0, 0)),
    ("try red", "try red", (0, 0, 1, 0)),
    ("try red", "red small", (1, 0, 0, 1)),
    ("try red", "try pink", (0, 0, 2, 0)),
    ("", "green small try green", (1, 0, 0, 1)),
    ("", "green small green small", (1, 0, 0, 0)),
    ("", "green small green large", (1, 0, 0, 1)),
    ("", "small go green small go", (1, 0, 0, 1)),
    ("best small blue round", "best small blue pointy", (0, 1, 0, 0)),
])
def test_known_verdicts(before, after, criteria):
    assert score(before, after) == Verdict(criteria)


@given(ANY_ITEMS)
def test_an_unchanged_memory_earns_at_most_its_old_lead(items):
    discoveries, corrections, leads, non_redundant = judge_items(items, items).criteria
    assert discoveries == corrections == non_redundant == 0
    assert leads in (0, 1)


@given(ANY_ITEMS, ANY_ITEMS)
def test_scores_are_in_range(before, after):
    verdict = judge_items(before, after)
    assert len(verdict.criteria) == len(CRITERIA)
    assert all(type(c) is int and 0 <= c <= 2 for c in verdict.criteria)


@given(st.text(), st.text())
def test_any_two_strings_are_scored_and_always_alike(before, after):
    assert score(before, after) == score(before, after)


@given(ANY_ITEMS, ANY_ITEMS, st.randoms())
def test_the_order_of_items_does_not_matter(before, after, random):
    shuffled = [random.sample(items, len(items)) for items in (before, after)]
    assert judge_items(*shuffled) == judge_items(before, after)


@given(MEMORIES, MEMORIES, st.sampled_from(COLOURS), st.sampled_from(("small", "large", "blue")))
def test_a_fact_on_a_subject_not_yet_spoken_of_never_lowers_the_score(before, after, key, value):
    # A fact that answers a lead is left out: the lead is then no longer open.
    assume(key not in {item.key for item in after})
    more = [*after, Item("fact", key, value)]
    assert judge_items(before, more).score >= judge_items(before, after).score


@given(MEMORIES, MEMORIES)
def test_dropping_everything_never_beats_keeping_it(before, new):
    facts = {item.key for item in before if item.kind == "fact"}
    new = [item for item in new if item not in before and item.key not in facts]
    kept = judge_items(before, [*before, *new])
    assert judge_items(before, new).score <= kept.score
    assert judge_items(before, []).score == 0 <= judge_items(before, before).score


@given(FACTS, FACTS)
def test_garbling_what_is_known_earns_at_most_a_quarter(before, values):
    garbled = {item.key: item.value for item in values}
    after = [Item("fact", item.key, garbled.get(item.key, item.value)) for item in before]
    assert judge_items(before, after).score <= 2 / 8
