"""A tokenizer of whole words with a two-marker chat template, for policies of a few dozen words."""

from collections.abc import Sequence
from typing import Any

from rime_jax.policy import hub

PAD, UNKNOWN, START_OF_REPLY, END_OF_TURN = "<pad>", "<unk>", ">", "."
_TAGS = ("<think>", "</think>")

# user text `>` reply `.` user text `>` …
_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}{{ '> ' + m['content'] + ' . ' }}"
    "{% else %}{{ m['content'] + ' ' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '> ' }}{% endif %}"
)


def word_tokenizer(words: Sequence[str]) -> Any:
    """A transformers tokenizer whose vocabulary is the given words and a few markers.

    Raises:
      ValueError: a word occurs twice or is one of the markers.
    """
    import tokenizers

    markers = (PAD, UNKNOWN, START_OF_REPLY, END_OF_TURN)
    vocabulary = (*markers, *_TAGS, *words)
    if len(set(vocabulary)) != len(vocabulary):
        raise ValueError("a word occurs twice, or is one of the markers " + " ".join(markers))
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token=UNKNOWN)
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = hub.transformers().PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END_OF_TURN,
        additional_special_tokens=[START_OF_REPLY],
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
