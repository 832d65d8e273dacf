"""Properties of the memory document."""

import string
import sys
import types

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rime_jax import memory
from rime_jax.memory import CompactMemory, HeadedMemory, Item

COMPACT = CompactMemory()
HEADED = HeadedMemory(
    ("## Potion effects", "## Best combination"), 1,
    subjects=("green", "red", "yellow", "orange", "pink", "turquoise"),
)
GOOD = """## Potion effects
- Green potion: makes small stones large.
- Try pink next.
## Best combination
- small blue round gives +15
"""

FORMATS = pytest.mark.parametrize("fmt", [COMPACT, HEADED], ids=["compact", "headed"])
PIECES = st.sampled_from([
    "<think>", "</think>", "#", "## Potion effects", "## Best combination", "\n", "\n\n", "- ",
    "* ", "```", "~~~", "**", "`", ":", " ", "\t", "\x00", "\u2028", "\ud800", "İ", "ß", "green",
    "small", "try", "best small blue round", "unknown:", "</s>", "<|im_end|>", "\\", "(" * 50,
])
HOSTILE = st.one_of(st.text(), st.lists(PIECES, max_size=60).map("".join))
COLOURS = ("green", "red", "yellow", "orange", "pink", "turquoise")
FEATURES = ("small", "large", "blue", "purple", "round", "pointy")
COMPACT_ITEMS = st.one_of(
    st.builds("{} {}".format, st.sampled_from(COLOURS), st.sampled_from(FEATURES)),
    st.builds("try {}".format, st.sampled_from(COLOURS)),
    st.builds("best {} {} {}".format, st.sampled_from(FEATURES[:2]), st.sampled_from(FEATURES[2:4]),
              st.sampled_from(FEATURES[4:])),
)
ITEMS = st.lists(st.builds(
    Item, st.sampled_from(["fact", "lead", "note"]), st.sampled_from("abc"),
    st.sampled_from(["one two three four", "one two three five", "six", "seven"]),
), max_size=8)


def read(reply, n_tokens=5, budget=10, finished=True, fmt=COMPACT, **kwargs):
    return memory.read_reply(reply, n_tokens, budget, finished, fmt, **kwargs)


@pytest.mark.parametrize("reply, opened, expected", [
    ("green small", False, ("green small", None)),
    (" <think>a</think>\n green small\n", False, ("green small", None)),
    ("a</think>green small", True, ("green small", None)),
    ("a</think>green small", False, ("green small", None)),
    ("<think>a<think>b</think>c</think>green", False, ("green", None)),
    ("<think>green small", False, ("", "unclosed_think")),
    ("<think>a</think>green<think>small", False, ("", "unclosed_think")),
    ("green small", True, ("", "unclosed_think")),
    ("", False, ("", None)),
    ("<think></think>", False, ("", None)),
])
def test_thinking_is_taken_off_and_must_be_closed(reply, opened, expected):
    assert memory.strip_thinking(reply, opened) == expected


@given(HOSTILE, st.booleans())
def test_no_text_of_an_open_thinking_block_is_an_answer(text, opened):
    answer, reason = memory.strip_thinking(text, opened)
    assert "<think>" not in answer and "</think>" not in answer
    if text.rfind("<think>") > text.rfind("</think>") or (opened and "</think>" not in text):
        assert (answer, reason) == ("", "unclosed_think")


@pytest.mark.parametrize("kwargs, reason", [
    ({}, None),
    ({"n_tokens": 10}, None),
    ({"n_tokens": 11}, "over_budget"),
    ({"n_tokens": 11, "finished": False}, "over_budget"),
    ({"finished": False}, "truncated"),
])
def test_budget_and_end_are_reported_and_items_still_parse(kwargs, reason):
    written = read("green small", **kwargs)
    assert written == memory.Written("green small", (Item("fact", "green", "small"),), reason)


def test_an_unclosed_monologue_leaves_no_text_and_no_items():
    assert read("<think>green small") == memory.Written("", (), "unclosed_think")
    assert read("green small", think_opened=True) == memory.Written("", (), "unclosed_think")


def test_a_format_decides_whether_the_empty_document_is_well_formed():
    assert read("").malformed is None
    assert read(" \n", fmt=HEADED).malformed == "empty"


@FORMATS
@given(text=HOSTILE, finished=st.booleans(), opened=st.booleans())
def test_any_string_is_read_without_raising(fmt, text, finished, opened):
    written = read(text, finished=finished, fmt=fmt, think_opened=opened)
    assert written == read(text, finished=finished, fmt=fmt, think_opened=opened)
    assert all(item.key for item in written.items)


@FORMATS
@pytest.mark.parametrize("piece", [
    "<think>", "</think>", "<think></think>", "\x00", "#", "# ", "## Potion effects\n", "- ",
    "- a\n", "*", "**", "`", "```\n", "(", " ", "\n", "a", "a ", ": ", "try ", "green small ",
    "best ", "e\u0301",
])
def test_a_megabyte_is_read(fmt, piece):
    read(piece * (1_000_000 // len(piece)), fmt=fmt)


@FORMATS
@pytest.mark.parametrize("piece", ["green small\n", "- a: b\n", "best small ", "# x\n", "```\n"])
def test_the_work_of_parsing_grows_linearly(fmt, piece):
    def calls(n):
        count = 0

        def profile(frame, event, arg):
            nonlocal count
            count += 1

        sys.setprofile(profile)
        try:
            fmt.parse_items(piece * n)
        finally:
            sys.setprofile(None)
        return count

    assert calls(2000) <= 10.5 * calls(200)


@given(st.lists(COMPACT_ITEMS, max_size=12))
def test_compact_items_parse_in_order_and_nothing_else_is_well_formed(texts):
    items, reason = COMPACT.parse_items(" ".join(texts))
    assert reason is None
    assert [render(item) for item in items] == texts
    assert COMPACT.parse_items(" ".join([*texts, "go"]))[1] == "grammar"


def render(item):
    return f"try {item.key}" if item.kind == "lead" else f"{item.key} {item.value}"


@pytest.mark.parametrize("text", [
    "green", "small green", "blue small", "purple blue", "green red", "try", "try blue", "try best",
    "best", "best small blue", "best blue small round", "best small small round",
    "best small blue round round", "green small,", "Green small", "- green small",
    "green small try",
])
def test_compact_refuses_all_else(text):
    assert COMPACT.parse_items(text)[1] == "grammar"


def test_compact_parses_what_follows_a_wrong_word():
    items, reason = COMPACT.parse_items("green go red large best small try pink")
    assert reason == "grammar"
    assert items == [Item("fact", "red", "large"), Item("lead", "pink", "try")]


def test_headed_memory_gives_keyed_facts_and_leads():
    items, reason = HEADED.parse_items(GOOD)
    assert reason is None
    assert items == [
        Item("fact", "green", "green potion: makes small stones large."),
        Item("lead", "pink", "try pink next."),
        Item("fact", "small blue round", "small blue round gives +15"),
    ]


@pytest.mark.parametrize("text, reason", [
    ("", "empty"),
    ("- green: large", "missing_section"),
    ("## Potion effects\n- green: large", "missing_section"),
    ("## Best combination\n- a\n## Potion effects\n- b", "missing_section"),
    ("## Potion effects\n## Best combination\n- a", "too_few_bullets"),
    ("## Potion effects\n- ...\n-\n---\n- - -\n## Best combination\n- a", "too_few_bullets"),
    ("## Potion effects\nall unknown\n## Best combination\n- a", "too_few_bullets"),
    ("Here is my memory:\n" + GOOD, "grammar"),
    (GOOD + "## Strategy\n- bank early", "grammar"),
    (GOOD + GOOD, "grammar"),
    (GOOD.replace("## P", "# P"), "missing_section"),
    (GOOD.replace("## Potion effects", "##  **potion Effects**: "), None),
    (GOOD.replace("- ", "* ").replace("\n", "\n\n"), None),
    (GOOD + "  and +1 otherwise\n\n  really\n", None),
])
def test_headed_memory_says_what_is_wrong(text, reason):
    assert HEADED.parse_items(text)[1] == reason


@pytest.mark.parametrize("bullet, key", [
    ("- The **green** potion makes blue stones large", "green"),
    ("- check whether a pink potion undoes turquoise", "pink"),
    ("- Submit command: `echo DONE`", "submit command"),
    ("- unknown: which tests are slow", "which tests slow"),
    ("- the tests are in `tests/unit` of the repository", "tests tests unit"),
    ("- it is", "it is"),
])
def test_headed_key_is_the_subject_the_label_or_the_first_telling_words(bullet, key):
    items, _ = HEADED.parse_items(f"## Potion effects\n{bullet}")
    assert [item.key for item in items] == [key]


@pytest.mark.parametrize("quoted", [
    "- run:\n```bash\n# a comment\n- not a bullet\n\n## Best combination\n```\n",
    "- run:\n  ```\n  # a comment\n  ```\n",
    "- ```\n  # a comment\n  ```\n",
    "- run ```a``` and\n```b```\n",
    "- run:\n\n      # indented\n",
])
def test_headed_memory_may_quote_code(quoted):
    items, reason = HEADED.parse_items(GOOD.replace("- Green", quoted + "- Green"))
    assert reason is None
    assert [item.key for item in items][-3:] == ["green", "pink", "small blue round"]
    assert len(items) == 4


def test_a_paragraph_of_a_section_is_a_note():
    items, reason = HEADED.parse_items(GOOD + "\nBank only good stones.\n")
    assert reason is None
    assert items[-1] == Item("note", "bank only good", "bank only good stones.")


@given(ITEMS, ITEMS)
def test_diff_accounts_for_every_item_once(before, after):
    change = memory.diff(before, after)
    old = [*change.kept, *(a for a, _ in change.changed), *change.dropped]
    new = [*change.kept, *(b for _, b in change.changed), *change.added]
    assert sorted(old) == sorted(set(before)) and sorted(new) == sorted(set(after))
    assert all((a.kind, a.key) == (b.kind, b.key) and a != b for a, b in change.changed)
    subjects = [{(i.kind, i.key) for i in part} for part in (change.dropped, change.added)]
    assert not subjects[0] & subjects[1]


@given(ITEMS, ITEMS)
def test_diff_backwards_swaps_added_and_dropped(before, after):
    there, back = memory.diff(before, after), memory.diff(after, before)
    assert (there.kept, there.added, there.dropped) == (back.kept, back.dropped, back.added)
    assert [(b, a) for a, b in there.changed] == list(back.changed)


@given(ITEMS, ITEMS)
@example([], [])
def test_retention_is_a_share_and_fuzzy_is_at_least_exact(before, after):
    exact, fuzzy = memory.retention_exact(before, after), memory.retention_fuzzy(before, after)
    if not before:
        assert exact is fuzzy is None
    else:
        assert 0 <= exact <= fuzzy <= 1
        assert exact == sum(item in after for item in before) / len(before)
        assert memory.retention_exact(before, before + after) == 1


def test_fuzzy_retention_counts_an_item_that_shares_six_tenths_of_its_words():
    old = [Item("fact", "k", "a b c d e")]  # 6 words with the key
    assert memory.retention_fuzzy(old, [Item("fact", "k", "a b c d x")]) == 1  # 5 / 7
    assert memory.retention_fuzzy(old, [Item("fact", "k", "a b c x y")]) == 0  # 4 / 8


@given(st.sets(st.sampled_from(string.ascii_lowercase)),
       st.sets(st.sampled_from(string.ascii_lowercase)))
def test_jaccard_is_symmetric_and_one_only_for_equal_sets(a, b):
    value = memory.jaccard(a, b)
    assert value == memory.jaccard(b, a) and 0 <= value <= 1
    assert (value == 1) == (a == b)


def test_jaccard_known_values():
    assert memory.jaccard("ab", "bc") == 1 / 3
    assert memory.jaccard("ab", "cd") == 0
    assert memory.jaccard("", "") == 1


@pytest.mark.parametrize("wrong", [[], None, ([], None, 3), "ab"])
def test_a_grammar_that_forgets_the_reason_is_named(wrong):
    grammar = types.SimpleNamespace(parse_items=lambda text: wrong)
    with pytest.raises(TypeError, match=r"parse_items must return \(items, reason or None\)"):
        memory.read_reply("a fact", 2, 10, True, grammar)
