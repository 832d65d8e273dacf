"""Conversations as token ids for services that take messages instead.

The rollout loop and the sessions work on ids. Here the text of a message is encoded by a local
tokenizer, which also measures budgets, and each message opens with an id of its role and ends with
one of its own; all four lie beyond the vocabulary. Cut at them, the ids are the messages again, so
that neither loop nor environment need know that the service has another tokenizer.
"""

from collections.abc import Sequence
from typing import Any

Message = dict[str, str]

_ROLES = ("system", "user", "assistant")


class MessageTokens:
    """Stands where `policy.chat.ChatTokens` does.

    Attributes:
      end_of_turn: the id that ends a reply.
      stop_ids: that id.
      think_opened: False: what a service thinks is no part of its reply.
    """

    think_opened = False

    def __init__(self, tokenizer: Any):
        """`tokenizer`: a transformers tokenizer; it needs no chat template."""
        self._tokenizer = tokenizer
        self._first = max(len(tokenizer), *tokenizer.get_vocab().values(), 0) + 1
        self._opens = {role: self._first + i for i, role in enumerate(_ROLES)}
        self.end_of_turn = self._first + len(_ROLES)
        self.stop_ids = (self.end_of_turn,)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the first messages and the start of the assistant's turn."""
        ids: list[int] = []
        for message in messages:
            ids += self._whole(message["role"], message["content"])
        return [*ids, self._opens["assistant"]]

    def turn(self, text: str, replied: int | None) -> list[int]:
        """Ids after a reply: its end (unless sampled), the message, the start of the next turn."""
        closed = [] if replied == self.end_of_turn else [self.end_of_turn]
        return [*closed, *self._whole("user", text), self._opens["assistant"]]

    def text(self, text: str) -> list[int]:
        """Ids of a text; tokens of the tokenizer's markup that it spells out stay text."""
        return list(self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=True).input_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, those of the markup left out."""
        return self._tokenizer.decode(
            [i for i in ids if i < self._first], skip_special_tokens=True,
            clean_up_tokenization_spaces=False)

    def messages(self, ids: Sequence[int]) -> list[Message]:
        """The messages of a conversation; the assistant's open turn at its end is left out."""
        roles = {opens: role for role, opens in self._opens.items()}
        found: list[tuple[str, list[int]]] = []
        for i in ids:
            if i in roles:
                found.append((roles[i], []))
            elif i != self.end_of_turn:
                found[-1][1].append(i)
        return [{"role": role, "content": self.decode(own)} for role, own in found[:-1]]

    def _whole(self, role: str, text: str) -> list[int]:
        return [self._opens[role], *self.text(text), self.end_of_turn]
