"""A false fact, and what later memories make of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax import memory, prompts_codebase
from rime_jax.envs.alchemy import scripts
from rime_jax.evaluation import corruption

COMPACT = memory.CompactMemory()
HEADED = memory.HeadedMemory(("## Potion effects", "## Best combination"), 1, ("green", "red"))
RED = "- the red potion makes stones large"
MEMORY = f"""## Potion effects
- the green potion makes stones large
{RED}
## Best combination
- small blue round earns 15"""
FALSE = MEMORY.replace("green potion makes stones large", "green potion makes stones small")


def corrupt(text, fmt, words, seed=0):
    return corruption.corrupt(text, fmt, words, np.random.default_rng(seed))


def items(text, fmt):
    return set(fmt.parse_items(text)[0])


facts = st.lists(st.tuples(st.sampled_from(["green", "red", "yellow", "pink"]),
                           st.sampled_from(["small", "large", "blue", "purple"])),
                 min_size=1, max_size=4, unique_by=lambda fact: fact[0])


@given(facts, st.integers(0, 99))
def test_exactly_one_fact_is_turned_into_its_opposite(pairs, seed):
    text = " ".join(f"{colour} {feature}" for colour, feature in pairs)
    made = corrupt(text, COMPACT, scripts.OPPOSITES, seed)
    before, after = items(text, COMPACT), items(made.text, COMPACT)
    assert before - after == {made.true} and after - before == {made.false}
    assert made.true.key == made.false.key
    assert scripts.OPPOSITES[made.true.value] == made.false.value


def test_what_has_no_fact_with_such_a_word_cannot_be_corrupted():
    assert corrupt("try green", COMPACT, scripts.OPPOSITES) is None
    assert corrupt("", COMPACT, scripts.OPPOSITES) is None
    assert corrupt("green large", COMPACT, {}) is None


def test_names_of_files_and_tests_take_each_others_place():
    text = ("## Repository knowledge\n- signs are in src/signs.py\n- tests are in tests/test_all.py"
            "\n## Lessons and pitfalls\n- run pytest first\n- Check the edges")
    words = prompts_codebase.false_words(text)
    fmt = prompts_codebase.CodebaseMemory()
    for seed in range(8):
        made = corrupt(text, fmt, words, seed)
        assert made.false.value in (
            "signs are in tests/test_all.py", "tests are in src/signs.py")
        assert fmt.parse_items(made.text)[1] is None


@pytest.mark.parametrize("later, fate", [
    (FALSE, "false"),
    (MEMORY, "corrected"),
    (MEMORY.replace("- the green potion makes stones large\n", ""), "gone"),
    # Reworded, with the truth or the falsehood in it.
    (MEMORY.replace("the green potion makes stones", "green makes stones"), "corrected"),
    (FALSE.replace("the green potion makes stones", "green makes stones"), "false"),
    # Both: a reader would believe either.
    (MEMORY + "\n- green makes stones small", "false"),
])
def test_the_fate_of_a_false_fact(later, fate):
    (true,) = items(MEMORY, HEADED) - items(FALSE, HEADED)
    (false,) = items(FALSE, HEADED) - items(MEMORY, HEADED)
    made = corruption.Corruption(FALSE, true, false)
    assert corruption.fate(made, later, HEADED) == fate
    assert corruption.fate(made, made.text, HEADED) == "false"


def test_a_fact_on_another_thing_in_the_same_words_says_nothing_about_it():
    (true,) = items(MEMORY, HEADED) - items(FALSE, HEADED)
    (false,) = items(FALSE, HEADED) - items(MEMORY, HEADED)
    made = corruption.Corruption(FALSE, true, false)
    assert corruption.fate(made, f"## Potion effects\n{RED}", HEADED) == "gone"
