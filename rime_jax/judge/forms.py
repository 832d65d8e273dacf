"""Replies in a given form: a JSON object each of whose values is one of a few.

A model fills a form by choosing: what is not to be chosen is put into its mouth, and where the
tokens of the choices part it samples among those alone. So any model gives a reply that can be
read, in a number of tokens that is known beforehand.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

MOST_CHOICES = 8
# What a property may say besides its choices.
_REMARKS = {"type", "title", "description"}


@dataclasses.dataclass(frozen=True)
class Form:
    """The members of a JSON object, in order: name → what its value may be, as JSON."""

    members: tuple[tuple[str, tuple[str, ...]], ...]

    def pieces(self) -> list[list[str]]:
        """The texts to choose among, one after another; a reply is a choice of each, joined."""
        last = len(self.members) - 1
        return [
            [f"{' ' if i else '{'}{json.dumps(name)}: {value}{'}' if i == last else ','}"
             for value in values]
            for i, (name, values) in enumerate(self.members)
        ]


def read(response_format: Any) -> Form | None:
    """The form that a request's `response_format` asks for; None: any text.

    Raises:
      ValueError: it is none, or more than choices is asked for.
    """
    if response_format in (None, {"type": "text"}):
        return None
    try:
        if response_format["type"] != "json_schema":
            raise ValueError(f"type {response_format['type']!r} is not served here")
        schema = response_format["json_schema"]["schema"]
        properties = schema["properties"]
        if schema["type"] != "object" or not properties:
            raise ValueError("the schema is of no object with properties")
        members = tuple((name, _choices(name, own)) for name, own in properties.items())
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no JSON schema of an object: {error!r}") from error
    return Form(members)


def _choices(name: str, property_schema: dict[str, Any]) -> tuple[str, ...]:
    values = property_schema.get("enum")
    others = property_schema.keys() - _REMARKS - {"enum"}
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_CHOICES or others:
        raise ValueError(f"the property {name!r} must have an enum of 1 to {MOST_CHOICES} values "
                         "and nothing else")
    return tuple(dict.fromkeys(json.dumps(value) for value in values))


class Session(Protocol):
    """What is needed of a `sampler.native.NativeSession`."""

    def extend(self, ids: Sequence[int]) -> None: ...

    async def generate(
        self, max_new_tokens: int, temperature: float, allowed: Sequence[int]) -> Any: ...


class Filling:
    """A form in the tokens of a model.

    Attributes:
      tokens: of the longest reply.
    """

    def __init__(self, form: Form, encode: Callable[[str], list[int]]):
        """`encode`: text → ids.

        Raises:
          ValueError: two choices have the same ids.
        """
        self._pieces = [[(text, tuple(encode(text))) for text in piece] for piece in form.pieces()]
        for piece in self._pieces:
            if len({ids for _, ids in piece}) < len(piece):
                raise ValueError("this model's tokenizer cannot tell the choices "
                                 f"{[text for text, _ in piece]} apart")
        self.tokens = sum(max(len(ids) for _, ids in piece) for piece in self._pieces)

    async def fill(self, session: Session, temperature: float) -> str:
        """A reply behind what the session holds."""
        chosen = [await _choose(session, piece, temperature) for piece in self._pieces]
        return "".join(chosen)


async def _choose(
    session: Session, texts: Sequence[tuple[str, tuple[int, ...]]], temperature: float
) -> str:
    """One of the texts; the session holds its ids then."""
    left, at = list(texts), 0
    while len(left) > 1:
        following = {ids[at] for _, ids in left}
        if len(following) == 1:
            session.extend(list(following))
        else:
            made = await session.generate(1, temperature, sorted(following))
            left = [(text, ids) for text, ids in left if ids[at] == made.ids[0]]
        at += 1
    ((text, ids),) = left
    session.extend(ids[at:])
    return text
