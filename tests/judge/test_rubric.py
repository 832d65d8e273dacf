"""Properties of the rubric's two ends: what the judge is asked, and how its answer is read."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax.judge import rubric
from rime_jax.judge.base import CRITERIA, Verdict

WORDS = rubric.DomainWords(
    "plays trials of an alchemy game", "what a potion does", "a potion still to be tested",
)


FRAME = re.sub("[0-9a-f]{16}", "MARK", rubric.prompt("", "", WORDS)[1]["content"])
TEXTS = st.text() | st.text(alphabet="<|>[]/\n\r\u2028\u202e\ud800 ab#") | st.from_regex(
    r"\A\[END OF (BEFORE|AFTER) [0-9a-f]{16}\]\Z")


@given(TEXTS, TEXTS)
def test_no_memory_can_close_its_own_quotation(before, after):
    system, user = rubric.prompt(before, after, WORDS)
    assert (system["role"], user["role"]) == ("system", "user")
    assert system == rubric.prompt("", "", WORDS)[0]
    lines = user["content"].split("\n")
    assert lines == user["content"].splitlines()
    mark = lines[0].removeprefix("[BEFORE ").removesuffix("]")
    quoted = [line for line in lines if line.startswith("| ")]
    assert not any(mark in line for line in quoted)
    rest = "\n".join(line for line in lines if not line.startswith("| "))
    assert rest.replace(mark, "MARK") == FRAME


@given(*[st.text(alphabet="abé ñ.,:;-*#_`'\"(){}=+0123456789\n\t|>] 炼金 🜂")] * 2)
def test_plain_text_reaches_the_judge_as_it_is(before, after):
    user = rubric.prompt(before, after, WORDS)[1]["content"]
    assert rubric.read_prompt(user) == (before, after)


@given(TEXTS, TEXTS)
def test_what_a_judge_reads_asks_the_same_question_again(before, after):
    messages = rubric.prompt(before, after, WORDS)
    seen = rubric.read_prompt(messages[1]["content"])
    assert rubric.read_prompt(rubric.prompt(*seen, WORDS)[1]["content"]) == seen


@given(st.text())
def test_other_text_is_no_prompt(text):
    assert rubric.read_prompt(text) is None


def test_a_memory_that_holds_the_mark_gets_another_one(monkeypatch):
    class Fixed:
        def __init__(self, data):
            self.n = 0

        def update(self, data):
            self.n += 1

        def hexdigest(self):
            return f"{self.n:016x}"

    monkeypatch.setattr(rubric.hashlib, "sha256", Fixed)
    _, user = rubric.prompt("0" * 16, f"{1:016x}", WORDS)
    assert user["content"].startswith(f"[BEFORE {2:016x}]")


def test_the_rubric_names_every_criterion_and_only_the_domain_words_differ():
    other = rubric.DomainWords("fixes bugs", "where a module lives", "a test still to be run")
    one, two = (rubric.prompt("a", "b", words)[0]["content"] for words in (WORDS, other))
    assert all(one.count(name) >= 2 for name in CRITERIA)
    for name in ("task", "fact", "lead"):
        mine, theirs = getattr(WORDS, name), getattr(other, name)
        assert mine in one
        one = one.replace(mine, theirs)
    assert one == two


@given(st.permutations(CRITERIA), st.tuples(*[st.integers(0, 2)] * 4))
def test_a_verdict_survives_json_in_any_order_of_keys(names, values):
    text = json.dumps({name: dict(zip(CRITERIA, values, strict=False))[name] for name in names})
    assert rubric.parse_verdict(f"<think>hm</think>\n{text}\n") == Verdict(values)


FULL = '{"discoveries": 1, "corrections": 0, "leads": 2, "non_redundant": %s}'


@pytest.mark.parametrize("text, reason", [
    ("", "not_json"),
    ("Sure! " + FULL % 1, "not_json"),
    (FULL % 1 + " Done.", "not_json"),
    ("[" * 100_000, "not_json"),
    (f"```json\n{FULL % 1}\n```", "not_json"),
    (f"`{FULL % 1}`", "not_json"),
    (FULL % 1 + FULL % 1, "not_json"),
    ((FULL % 1)[:-1], "not_json"),
    ((FULL % 1).replace('"', "'"), "not_json"),
    (FULL % "0x1", "not_json"),
    (FULL % "01", "not_json"),
    (f"[{FULL % 1}]", "wrong_keys"),
    ('{"verdict": %s}' % (FULL % 1), "wrong_keys"),
    (FULL % "1e0", "wrong_value"),
    (FULL % '{"score": 1}', "wrong_value"),
    (FULL % "[1]", "wrong_value"),
    (FULL % ("9" * 5000), "not_json"),
    ("<think>" + FULL % 1, "unclosed_think"),
    ("[]", "wrong_keys"),
    ("3", "wrong_keys"),
    ("{}", "wrong_keys"),
    ('[["discoveries", 1], ["corrections", 0], ["leads", 2], ["non_redundant", 1]]', "wrong_keys"),
    (FULL % '1, "leads": 0', "wrong_keys"),
    (FULL % '1, "total": 4', "wrong_keys"),
    (FULL % 3, "wrong_value"),
    (FULL % -1, "wrong_value"),
    (FULL % 1.0, "wrong_value"),
    (FULL % "true", "wrong_value"),
    (FULL % "null", "wrong_value"),
    (FULL % '"1"', "wrong_value"),
    (FULL % "NaN", "wrong_value"),
    (FULL % "{}", "wrong_value"),
])
def test_an_answer_that_is_not_exactly_a_verdict_says_why(text, reason):
    assert rubric.parse_verdict(text) == reason


@given(st.text())
def test_any_answer_is_read_without_raising(text):
    assert isinstance(rubric.parse_verdict(text), (str, Verdict))


@given(st.permutations(CRITERIA), st.tuples(*[st.integers(-1, 3)] * 4))
def test_the_schema_and_the_parser_allow_the_same_verdicts(names, values):
    schema = rubric.RESPONSE_FORMAT["json_schema"]["schema"]
    answer = dict(zip(names, values, strict=True))
    allowed = set(answer) == set(schema["required"]) and all(
        value in schema["properties"][name]["enum"] for name, value in answer.items())
    assert isinstance(rubric.parse_verdict(json.dumps(answer)), Verdict) == allowed
