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

Message = dict[str, str]
Thinking = Literal["auto", "on", "off"]

# Unlikely in any template, and left alone by templates that strip their contents.
_PLACEHOLDER = "rime{}placeholder"


class TemplateError(ValueError):
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
        user, reply, follow_up = (_PLACEHOLDER.format(i) for i in range(3))
        opening = self._render([{"role": "user", "content": user}])
        longer = self._render([
            {"role": "user", "content": user},
            {"role": "assistant", "content": reply},
            {"role": "user", "content": follow_up},
        ])
        between, _, tail = longer.partition(reply)[2].partition(follow_up)
        if user not in opening or not longer.startswith(opening.partition(user)[0]) or not tail:
            raise TemplateError(
                "the chat template does not render turns one after another; a conversation cannot "
                "grow under it"
            )
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
        # `split_special_tokens` spares only tokens that are called special; a tag that is cut in
        # two cannot become a token.
        ids = [
            i for piece in self._inside_markup.split(text) if piece
            for i in self._tokenizer(
                piece, add_special_tokens=False, split_special_tokens=True).input_ids
        ]
        return tuple(i for i in ids if i not in self._special)

    def _decode(self, ids: tuple[int, ...]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def _opening_markers(self, roles: tuple[str, ...]) -> list[list[int]]:
        """Ids before each message's text, and those after the last."""
        names = [_PLACEHOLDER.format(i) for i in range(len(roles))]
        rest = self._render([{"role": r, "content": n} for r, n in zip(roles, names, strict=True)])
        markers = []
        for name, role in zip(names, roles, strict=True):
            marker, found, rest = rest.partition(name)
            if not found:
                raise TemplateError(f"the chat template drops a {role} message")
            markers.append(self._markers(marker))
        return [*markers, self._markers(rest)]

    def _render(self, messages: list[Message]) -> str:
        return self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._options
        )

    def _markers(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False).input_ids
