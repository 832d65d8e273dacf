"""Chat turns as token ids, by the provenance contract: nothing is decoded and encoded again.

A conversation opens with the template rendered once. After that it only grows: sampled ids stay
as they were sampled, and a message from the environment is appended as ids between the template's
own turn markers, which are found by rendering the template around placeholders. Texts are encoded
apart from the markers and cannot produce tokens of the markup, so a memory or an observation that
contains `<|im_end|>` or `</think>` stays text.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, Literal

from rime_jax import errors

Message = dict[str, str]
Thinking = Literal["auto", "on", "off"]

# Unlikely in any template, and left alone by templates that strip their contents.
_PLACEHOLDER = "rime{}placeholder"
# A block of thinking that a template opens, and may close, before a reply.
_THINKING = re.compile(r"<think>\s*(</think>\s*)?")


class TemplateError(errors.UserError):
    """A chat template that cannot be used for growing conversations."""


class ChatTokens:
    """The turn markers of one tokenizer.

    Attributes:
      end_of_turn: the id that ends a reply.
      stop_ids: ids at which generation stops (end of turn, ends of text), ascending.
      think_opened: the assistant's turn starts inside a thinking block that the template opened, so
        that a reply's thinking has no opening tag of its own.
    """

    def __init__(
        self, tokenizer: Any, thinking: Thinking = "auto", ends_of_text: Sequence[int] = ()
    ):
        """Args:
          tokenizer: a transformers tokenizer with a chat template.
          thinking: `on` and `off` are the template's `enable_thinking`; `auto` leaves it out.
          ends_of_text: ids that end a text, beside the tokenizer's own.

        Raises:
          TemplateError: no template, or one whose turns are not prefix-stable.
        """
        if not tokenizer.chat_template:
            raise TemplateError(
                "the tokenizer has no chat template; add chat_template.jinja to the model directory"
            )
        self._tokenizer = tokenizer
        self._options = {} if thinking == "auto" else {"enable_thinking": thinking == "on"}
        # Small policies say the same few things over and over: caches save most of the time that
        # a rollout spends on text.
        self._encode = functools.lru_cache(maxsize=1 << 14)(self._encode)
        self._decode = functools.lru_cache(maxsize=1 << 14)(self._decode)
        self._opening_markers = functools.lru_cache(maxsize=64)(self._opening_markers)
        # Tags of thinking and tools are markup too, though Qwen does not call them special.
        markup = {str(token) for token in tokenizer.added_tokens_decoder.values()}
        self._inside_markup = re.compile("|".join(
            f"(?<={re.escape(tag[0])})(?={re.escape(tag[1:])})"
            for tag in sorted(markup) if len(tag) > 1) or "(?!)")
        self._special = frozenset(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
        between, tail = self._turn_markers()
        self._before = self._markers(between)
        self._after = self._markers(tail)
        if not set(self._before[:1]) & self._special:
            raise TemplateError(
                "the chat template does not end a reply with a token of its own, at which "
                "generation could stop; use a template with an end-of-turn token"
            )
        self.end_of_turn: int = self._before[0]
        stops = {self.end_of_turn, tokenizer.eos_token_id, *ends_of_text} - {None}
        self.stop_ids: tuple[int, ...] = tuple(sorted(stops))
        self.think_opened: bool = tail.rfind("<think>") > tail.rfind("</think>")

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the first messages and the start of the assistant's turn."""
        *markers, last = self._opening_markers(tuple(m["role"] for m in messages))
        ids: list[int] = []
        for marker, message in zip(markers, messages, strict=True):
            ids += marker + self.text(message["content"])
        return ids + last

    def turn(self, text: str, replied: int | None) -> list[int]:
        """Ids after a reply: its end (unless sampled), the message, the start of the next turn.

        Args:
          text: the message of the environment.
          replied: the last sampled id; None if the reply was empty.
        """
        closed = replied == self.end_of_turn
        return self._before[closed:] + self.text(text) + self._after

    def text(self, text: str) -> list[int]:
        """Ids of a text; tokens of the markup that it spells out stay ordinary text.

        Those that are a word of the vocabulary, and special tokens for unknown words, are left out.
        """
        return list(self._encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, end-of-turn and other special tokens left out."""
        return self._decode(tuple(ids))

    def _encode(self, text: str) -> tuple[int, ...]:
        # Tokenizers refuse half a surrogate pair, which JSON of services and of tasks can hold.
        text = text.encode("utf-8", "replace").decode()
        # `split_special_tokens` spares only tokens that are called special; a tag that is cut in
        # two cannot become a token.
        ids = [
            i for piece in self._inside_markup.split(text) if piece
            for i in self._tokenizer(
                piece, add_special_tokens=False, split_special_tokens=True).input_ids
        ]
        return tuple(i for i in ids if i not in self._special)

    def _decode(self, ids: tuple[int, ...]) -> str:
        # A clean-up of spaces would change a memory from task to task.
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _opening_markers(self, roles: tuple[str, ...]) -> list[list[int]]:
        """Ids before each message's text, and those after the last."""
        *pieces, rest = self._pieces(*roles)
        last = self._markers(rest)
        if last != self._after:
            raise TemplateError(
                f"the chat template starts the first reply with {rest!r} and not as later ones; a "
                "conversation cannot grow under it"
            )
        return [*map(self._markers, pieces), last]

    def _turn_markers(self) -> tuple[str, str]:
        """Markup from a reply to the next message, and from there to the next reply.

        Raises:
          TemplateError: they depend on the place in the conversation, apart from a block of
            thinking, which templates leave out of, or empty in, their histories.
        """
        head, start = self._pieces("user")
        longer_head, *between = self._pieces("user", "assistant", "user", "assistant", "user")
        starts, ends = between[0::2], between[1::2]
        same_starts = {_THINKING.sub("", text).rstrip() for text in starts}
        if (head, start, ends[0]) != (longer_head, starts[-1], ends[1]) or len(same_starts) > 1:
            raise TemplateError(
                "the chat template does not render turns one after another, each in the same "
                "markup and the last with the start of a reply; a conversation cannot grow under "
                "it, use a template that does so"
            )
        return ends[0], start

    def _pieces(self, *roles: str) -> list[str]:
        """The markup before, between and after messages of these roles."""
        names = [_PLACEHOLDER.format(i) for i in range(len(roles))]
        rest = self._render([{"role": r, "content": n} for r, n in zip(roles, names, strict=True)])
        pieces = []
        for name, role in zip(names, roles, strict=True):
            piece, found, rest = rest.partition(name)
            if not found:
                raise TemplateError(
                    f"the chat template drops a {role} message, changes its text or moves it; a "
                    "conversation cannot grow under it, use a template that does not"
                )
            pieces.append(piece)
        return [*pieces, rest]

    def _render(self, messages: list[Message]) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self._options
            )
        except Exception as error:  # a template is a program, and refuses in its own words
            roles = ", ".join(m["role"] for m in messages)
            raise TemplateError(
                f"the chat template cannot render messages of {roles}: {error}; use a model whose "
                "template can, or change its chat_template.jinja"
            ) from error

    def _markers(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False).input_ids
