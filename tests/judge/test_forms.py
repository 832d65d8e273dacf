"""Replies in a given form: whatever the model chooses, the reply can be read."""

import asyncio
import json
import types

import httpx2
import hypothesis
import jax
import pytest
from hypothesis import strategies as st

from rime_jax.judge import backends, client, forms, rubric
from rime_jax.judge.base import CRITERIA, Verdict
from rime_jax.policy import characters, qwen3, weights
from tests.judge.stub import chat_server_of

VERDICT = forms.read(rubric.RESPONSE_FORMAT)
WORDS = rubric.DomainWords("plays", "what a thing does", "a thing to try")
VALUES = st.one_of(st.integers(-120, 120), st.booleans(), st.none(), st.text(max_size=6),
                   st.floats(allow_nan=False, allow_infinity=False))


def schema_of(properties):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": properties}}}


def encoder(merged):
    """A tokenizer whose ids are pieces of `merged` characters, from the left."""
    known = {}

    def encode(text):
        return [known.setdefault(text[i : i + merged], len(known))
                for i in range(0, len(text), merged)]

    return encode


class Chooser:
    """A session that samples among what it is allowed, as `draw` says."""

    def __init__(self, draw):
        self.ids, self._draw = [], draw

    def extend(self, ids):
        self.ids.extend(ids)

    async def generate(self, max_new_tokens, temperature, allowed):
        assert max_new_tokens == 1 and 2 <= len(allowed) <= forms.MOST_CHOICES
        self.ids.append(self._draw(st.sampled_from(allowed)))
        return types.SimpleNamespace(ids=self.ids[-1:])


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.data(), st.integers(1, 7))
def test_any_choice_of_any_form_is_read_as_what_was_allowed(data, merged):
    enums = data.draw(st.dictionaries(
        st.text(max_size=5), st.lists(VALUES, min_size=1, max_size=forms.MOST_CHOICES),
        min_size=1, max_size=4))
    form = forms.read(schema_of({name: {"enum": values} for name, values in enums.items()}))
    encode = encoder(merged)
    filling, session = forms.Filling(form, encode), Chooser(data.draw)
    text = asyncio.run(filling.fill(session, 1.0))
    found = json.loads(text)
    assert list(found) == list(enums)
    assert all(json.dumps(found[n]) in map(json.dumps, enums[n]) for n in enums)
    assert len(session.ids) <= filling.tokens


def test_the_rubrics_form_is_the_four_criteria_with_their_scores():
    assert VERDICT.members == tuple((name, ("0", "1", "2")) for name in CRITERIA)
    zero = "".join(piece[0] for piece in VERDICT.pieces())
    assert rubric.parse_verdict(zero) == Verdict((0, 0, 0, 0))
    assert zero == json.dumps(dict.fromkeys(CRITERIA, 0))


@pytest.mark.parametrize("asked", [
    {"type": "json_object"}, {"type": "grammar"}, "json", {"type": "json_schema"}, 5, [],
    schema_of({}), schema_of({"a": {"type": "integer"}}), schema_of({"a": {"enum": []}}),
    schema_of({"a": {"enum": list(range(9))}}), schema_of({"a": {"enum": "ab"}}),
    schema_of({"a": {"enum": [1], "minimum": 2}}), schema_of({"a": []}), schema_of([1]),
    {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {}}}},
])
def test_other_forms_are_refused(asked):
    with pytest.raises(ValueError):
        forms.read(asked)


@pytest.mark.parametrize("asked", [None, {"type": "text"}])
def test_no_form_is_any_text(asked):
    assert forms.read(asked) is None


def test_choices_that_a_tokenizer_does_not_tell_apart_are_refused():
    with pytest.raises(ValueError, match="apart"):
        forms.Filling(VERDICT, lambda text: [0])


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """A random model that spells by bytes."""
    directory = tmp_path_factory.mktemp("random") / "model"
    tokenizer = characters.byte_tokenizer()
    policy = qwen3.Qwen3(qwen3.Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, initializer_range=0.5,
        max_position_embeddings=4096))
    weights.save(directory, policy, policy.init(jax.random.key(3)), tokenizer)
    return backends.model(directory, "float32", context_tokens=4096, slots=8)


def test_a_random_model_gives_verdicts_to_the_client_by_its_schema(answer, tmp_path):
    async def go():
        async with chat_server_of(answer) as url:
            judge = client.ServerJudge(
                [url], "a-judge", WORDS, concurrency=8, timeout_s=60.0, retries=0, cache=None)
            found = await asyncio.gather(*(judge.score("", f"note {i}") for i in range(6)))
            return found, judge.metrics()

    found, counts = asyncio.run(go())
    assert all(isinstance(verdict, Verdict) for verdict in found)
    assert counts["judge/verdicts/answered"] == counts["judge/requests/answered"] == 6
    assert sum(counts.values()) == 12


def ask(answer, **fields):
    async def go():
        async with chat_server_of(answer) as url, httpx2.AsyncClient(timeout=60) as http:
            found = await http.post(f"{url}/chat/completions", json={
                "model": "a-judge", "messages": [{"role": "user", "content": "grade"}],
                "response_format": rubric.RESPONSE_FORMAT} | fields)
            return found.status_code, found.json()

    return asyncio.run(go())


def test_a_reply_in_a_form_is_counted_and_stays_within_its_budget(answer):
    status, found = ask(answer, temperature=2.0, max_tokens=90)
    (choice,) = found["choices"]
    assert status == 200 and choice["finish_reason"] == "stop"
    assert isinstance(rubric.parse_verdict(choice["message"]["content"]), Verdict)
    assert found["usage"]["completion_tokens"] == len(choice["message"]["content"]) <= 90


@pytest.mark.parametrize("fields, named", [
    ({"max_tokens": 8}, "max_tokens: the reply may take"),
    ({"messages": [{"role": "user", "content": "x" * 4060}]}, "are left of the context"),
])
def test_a_reply_that_would_not_fit_is_refused(answer, fields, named):
    status, found = ask(answer, **fields)
    assert status == 400 and named in found["error"]["message"]
