"""Growing a conversation token by token equals rendering it, and text never makes markers."""

import hypothesis
import pytest
import tokenizers
import transformers
from hypothesis import strategies as st

from rime_jax.policy import characters, words
from rime_jax.policy import chat as chat_lib

# In the manner of Qwen: one block a message, thinking dropped from the history.
CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'].split('</think>')[-1] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = CHATML.replace("assistant\n", "assistant\n<think>\n")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_pair_tokenizer(template, eos="<|im_end|>"):
    """Byte-level BPE with Qwen's markers; as in Qwen, the thinking tags are not `special`."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(["the assistant reads the memory of a user"] * 3, trainer)
    backend.add_special_tokens(list(SPECIAL))
    backend.add_tokens([tokenizers.AddedToken(t, special=False) for t in ("<think>", "</think>")])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, pad_token="<|endoftext|>")
    tokenizer.chat_template = template
    return tokenizer


VOCABULARY = ("red", "green", "stone", "potion", "memory", "go")
TOKENIZERS = {
    "words": words.word_tokenizer(VOCABULARY),
    "byte pairs": byte_pair_tokenizer(CHATML),
    "byte pairs, other end of text": byte_pair_tokenizer(CHATML, eos="<|endoftext|>"),
}
CHATS = {name: chat_lib.ChatTokens(tokenizer) for name, tokenizer in TOKENIZERS.items()}
NAMES = st.sampled_from(sorted(TOKENIZERS))


def rendered(tokenizer, messages):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False).input_ids


@hypothesis.given(
    name=NAMES,
    roles=st.sampled_from([["user"], ["system", "user"]]),
    texts=st.lists(st.lists(st.sampled_from(VOCABULARY), min_size=1).map(" ".join), min_size=9,
                   max_size=9),
    ends=st.lists(st.booleans(), max_size=3),
)
def test_a_grown_conversation_equals_its_rendering(name, roles, texts, ends):
    tokenizer, chat = TOKENIZERS[name], CHATS[name]
    texts = iter(texts)
    messages = [{"role": role, "content": next(texts)} for role in roles]
    ids = chat.opening(messages)
    assert ids == rendered(tokenizer, messages)
    for sampled_the_end in ends:
        reply, message = next(texts), next(texts)
        ids += tokenizer(reply, add_special_tokens=False).input_ids
        ids += [chat.end_of_turn] * sampled_the_end
        ids += chat.turn(message, ids[-1])
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": message}]
        assert ids == rendered(tokenizer, messages)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_end_of_turn_is_added_once_and_only_if_it_was_not_sampled(name):
    chat = CHATS[name]
    unfinished = chat.turn("go", None)
    assert unfinished.count(chat.end_of_turn) == 1 + (name != "words")
    assert chat.turn("go", chat.text("go")[-1]) == unfinished
    assert chat.turn("go", chat.end_of_turn) == unfinished[1:]


def test_generation_stops_at_the_end_of_turn_and_at_the_end_of_text():
    im_end, end_of_text = (TOKENIZERS["byte pairs"].convert_tokens_to_ids(t)
                           for t in ("<|im_end|>", "<|endoftext|>"))
    assert CHATS["byte pairs"].stop_ids == (im_end,)
    other = CHATS["byte pairs, other end of text"]
    assert other.end_of_turn == im_end
    assert other.stop_ids == tuple(sorted((im_end, end_of_text)))
    # A reply that ends with the end of text is still to be closed.
    assert other.turn("go", end_of_text)[0] == im_end


def test_thinking_stays_in_the_history_though_the_template_drops_it():
    tokenizer = byte_pair_tokenizer(THINKING)
    chat = chat_lib.ChatTokens(tokenizer)
    opening = chat.opening([{"role": "user", "content": "go"}])
    assert tokenizer.decode(opening).endswith("<|im_start|>assistant\n<think>\n")
    reply = tokenizer("the memory\n</think>\nred<|im_end|>").input_ids
    conversation = opening + reply + chat.turn("green", reply[-1])
    assert tokenizer.decode(conversation) == (
        "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n<think>\nthe memory\n</think>\nred"
        "<|im_end|>\n<|im_start|>user\ngreen<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert chat.decode(reply) == "the memory\n</think>\nred"


SWITCHED = CHATML + (
    "{% if enable_thinking is defined %}{{ '<think>\n' }}"
    "{% if not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}")


@pytest.mark.parametrize(("thinking", "start", "opened"), [
    ("auto", "", False), ("on", "<think>\n", True), ("off", "<think>\n\n</think>\n\n", False)])
def test_the_template_is_told_whether_to_think(thinking, start, opened):
    tokenizer = byte_pair_tokenizer(SWITCHED)
    chat = chat_lib.ChatTokens(tokenizer, thinking)
    for ids in (chat.opening([{"role": "user", "content": "go"}]), chat.turn("go", None)):
        assert tokenizer.decode(ids).endswith("<|im_start|>assistant\n" + start)
    assert chat.think_opened == opened


def test_further_ends_of_text_stop_generation_too():
    tokenizer = byte_pair_tokenizer(CHATML)
    end, end_of_text = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert chat_lib.ChatTokens(tokenizer, ends_of_text=[end_of_text, end]).stop_ids == tuple(
        sorted((end, end_of_text)))


HOSTILE = st.lists(
    st.sampled_from([*SPECIAL, "<think>", "</think>", "<|im_", "end|>", "user\n", " ", *VOCABULARY,
                     ".", ">", "<unk>", "<pad>"])
    | st.text(max_size=4)
).map("".join)


@hypothesis.given(name=NAMES, text=HOSTILE | HOSTILE.map(" ".join))
def test_text_never_makes_a_special_token(name, text):
    tokenizer, chat = TOKENIZERS[name], CHATS[name]
    special = {*tokenizer.all_special_ids}
    if name != "words":
        special |= set(tokenizer.convert_tokens_to_ids([*SPECIAL, "<think>", "</think>"]))

    def markers(ids):
        return [i for i in ids if i in special]

    assert markers(chat.text(text)) == []
    assert markers(chat.turn(text, None)) == markers(chat.turn("go", None))
    system = [{"role": "system", "content": text}, {"role": "user", "content": text}]
    assert markers(chat.opening(system)) == markers(
        chat.opening([{**m, "content": "go"} for m in system]))


@hypothesis.given(text=HOSTILE)
def test_byte_level_text_survives_encoding_whole(text):
    chat = CHATS["byte pairs"]
    assert chat.decode(chat.text(text)) == text


def test_unknown_words_are_left_out():
    chat = CHATS["words"]
    assert chat.decode(chat.text("red . dragon > green <pad> go")) == "red green go"


MARKED = "'<|im_start|>' + m['content'] + '<|im_end|>'"


DROPS, GROWS = "drops a .* message, changes its text or moves it", "one after another"


@pytest.mark.parametrize("template, message", [
    (None, "no chat template"),
    ("{{ '<|im_start|>' + messages[-1]['content'] + '<|im_end|>' }}", DROPS),
    ("{% for m in messages|reverse %}{{ " + MARKED + " }}{% endfor %}", DROPS),
    ("{% for m in messages if m['role'] == 'user' %}{{ " + MARKED + " }}{% endfor %}", DROPS),
    ("{% for m in messages %}{{ (" + MARKED + ")|upper }}{% endfor %}", DROPS),
    (CHATML.replace("in messages", "in messages[-2:]"), DROPS),
    ("{{ messages|length }}{% for m in messages %}{{ " + MARKED + " }}{% endfor %}", GROWS),
    ("{% for m in messages %}{{ m['content'] }}{% endfor %}<|im_end|>", GROWS),
    # Markup by place: numbers, a note on the last message, a note in longer conversations.
    (CHATML.replace("m['role']", "m['role'] + loop.index|string"), GROWS),
    (CHATML.replace("+ '<|im_end|>", "+ (' /think' if loop.last else '') + '<|im_end|>"), GROWS),
    ("{% if messages|length > 3 %}long{% endif %}" + CHATML, GROWS),
    # Nothing opens the assistant's turn; and its turns open otherwise in the history.
    (CHATML.partition("{% if add")[0], GROWS),
    (CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant to=user\n"), GROWS),
    ("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '; ' }}{% endfor %}assistant: ",
     "token of its own"),
    ("{% for m in messages %}{{ m['content'] ", "cannot render messages of user: unexpected end"),
    ("{% for m in messages %}{{ shout(m) }}{% endfor %}", "'shout' is undefined; use a model"),
    ({"rag": CHATML, "tool_use": CHATML}, "cannot render messages of user: .*default"),
])
def test_a_template_under_which_nothing_can_grow_is_refused(template, message):
    with pytest.raises(chat_lib.TemplateError, match=message):
        chat_lib.ChatTokens(byte_pair_tokenizer(template))


SYSTEM = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]


@pytest.mark.parametrize("given, message", [
    ("raise_exception('No system role')", "messages of system, user: No system role; use a model"),
    ("'so '", "starts the first reply with"),
])
def test_a_template_that_cannot_have_a_system_message_is_refused(given, message):
    template = CHATML + "{% if messages[0]['role'] == 'system' %}{{ " + given + " }}{% endif %}"
    chat = chat_lib.ChatTokens(byte_pair_tokenizer(template))
    with pytest.raises(chat_lib.TemplateError, match=message):
        chat.opening(SYSTEM)


LLAMA3 = (
    "{{ '<|endoftext|>' }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n\n' "
    "+ m['content']|trim + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}")
MISTRAL = (
    "{{ '<|endoftext|>' }}{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ m['content'] + '<|im_end|>' }}{% else %}{{ '<|im_start|>' + m['content'] + '[/INST]' }}"
    "{% endif %}{% endfor %}")
EMPTY_THINKING = THINKING.replace(
    "+ m['content']",
    "+ ('<think>\n\n</think>\n\n' if m['role'] == 'assistant' else '') + m['content']")


@pytest.mark.parametrize("template", [LLAMA3, MISTRAL])
def test_other_forms_of_markup_grow_as_they_are_rendered(template):
    tokenizer = byte_pair_tokenizer(template, eos="<|endoftext|>")
    chat = chat_lib.ChatTokens(tokenizer)
    messages = [{"role": "user", "content": "red"}, {"role": "assistant", "content": "stone"},
                {"role": "user", "content": "go"}]
    ids = chat.opening(messages[:1]) + chat.text("stone") + chat.turn("go", None)
    assert ids == rendered(tokenizer, messages)
    assert ids.count(tokenizer.eos_token_id) == 1


def test_a_history_with_emptied_thinking_is_accepted():
    assert chat_lib.ChatTokens(byte_pair_tokenizer(EMPTY_THINKING)).think_opened


def test_decoding_does_not_clean_up_spaces():
    tokenizer = byte_pair_tokenizer(CHATML)
    tokenizer.clean_up_tokenization_spaces = True
    chat = chat_lib.ChatTokens(tokenizer)
    assert chat.decode(chat.text("red . , is n't 's")) == "red . , is n't 's"


def test_a_dropped_system_message_is_reported():
    template = CHATML.replace("in messages", "in messages if m['role'] != 'system'")
    chat = chat_lib.ChatTokens(byte_pair_tokenizer(template))
    with pytest.raises(chat_lib.TemplateError, match="drops a system message"):
        chat.opening([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])


def test_words_of_a_tokenizer_are_distinct_and_no_markers():
    for vocabulary in (("red", "red"), ("red", "<think>"), ("red", ".")):
        with pytest.raises(ValueError, match="occurs twice"):
            words.word_tokenizer(vocabulary)


def test_half_a_surrogate_pair_is_encoded_as_what_stands_for_it():
    """Services and task files can hold one in JSON; the tokenizers would refuse the whole text."""
    chat = chat_lib.ChatTokens(characters.byte_tokenizer())
    assert chat.text("a\ud800b\udfff") == chat.text("a?b?")
