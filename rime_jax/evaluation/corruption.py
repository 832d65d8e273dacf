"""One fact of a memory turned into a falsehood, and what became of it."""

import collections
import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

import numpy as np

from rime_jax import memory

Fate = Literal["corrected", "false", "gone"]


@dataclasses.dataclass(frozen=True)
class Corruption:
    """A memory with one falsehood.

    Attributes:
      text: the memory.
      true, false: the fact as it was, and as it stands in `text`.
    """

    text: str
    true: memory.Item
    false: memory.Item


def corrupt(
    text: str, fmt: memory.MemoryFormat, words: Mapping[str, str], rng: np.random.Generator
) -> Corruption | None:
    """Replaces one word of one fact; None where no fact has such a word.

    Args:
      text: a memory.
      fmt: its grammar.
      words: word → what takes its place.
      rng: draws a fact, and then a place in it.
    """
    if not words:
        return None
    alternatives = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    possible: dict[memory.Item, list[Corruption]] = {}
    before = fmt.parse_items(text)[0]
    # Words of code hold dots and slashes, so that \b would find parts of them.
    for place in re.finditer(rf"(?<![\w./])(?:{alternatives})(?![\w/]|\.\w)", text):
        made = text[: place.start()] + words[place[0]] + text[place.end():]
        pair = _replaced(memory.diff(before, fmt.parse_items(made)[0]))
        if pair is not None and pair[0].kind == pair[1].kind == "fact":
            possible.setdefault(pair[0], []).append(Corruption(made, *pair))
    if not possible:
        return None
    of_fact = list(possible.values())[int(rng.integers(len(possible)))]
    return of_fact[int(rng.integers(len(of_fact)))]


def _replaced(changed: memory.Diff) -> tuple[memory.Item, memory.Item] | None:
    """The one item that another took the place of, and nothing else; the word may have been in
    its key."""
    if len(changed.changed) == 1 and not changed.added and not changed.dropped:
        return changed.changed[0]
    if len(changed.added) == len(changed.dropped) == 1 and not changed.changed:
        return changed.dropped[0], changed.added[0]
    return None


def fate(corruption: Corruption, text: str, fmt: memory.MemoryFormat) -> Fate:
    """What a later memory says: the truth again (`corrected`), the falsehood (`false`), or nothing
    about it (`gone`).

    An item speaks of it if it has the key of one of the two, or is one of them reworded. It says
    what it shares more words with. Where several speak, the falsehood counts.
    """
    true, false = _words(corruption.true), _words(corruption.false)
    says: set[int] = set()
    for item in fmt.parse_items(text)[0]:
        if item.kind == "fact" and any(
                _speaks_of(item, fact) for fact in (corruption.true, corruption.false)):
            own = _words(item)
            says.add(int(np.sign((own & true).total() - (own & false).total())))
    return "false" if -1 in says else "corrected" if 1 in says else "gone"


def _speaks_of(item: memory.Item, fact: memory.Item) -> bool:
    """Facts on several things are often worded alike: most of the key must be there as well."""
    own, key = _words(item), set(fact.key.split())
    return item.key == fact.key or (
        2 * len(key & set(own)) > len(key)
        and memory.jaccard(own, _words(fact)) >= memory.FUZZY_JACCARD)


def _words(item: memory.Item) -> collections.Counter[str]:
    return collections.Counter(re.findall(r"\S+", f"{item.key} {item.value}"))
