"""The memory document: from a WRITE reply to items, and what changed between two documents.

A memory is text that a policy wrote. Here it is only data: every function takes any string, never
raises on it and, up to the comparisons of `retention_fuzzy`, runs in time linear in its length.
Which text is well formed is the grammar of a `MemoryFormat`; the two at the end of this file are
the small policy's words and headed markdown.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, Protocol

FUZZY_JACCARD = 0.6  # method section 6: two items that share this much are the same item reworded

_OPEN, _CLOSE = "<think>", "</think>"

Kind = Literal["fact", "lead", "note"]


@dataclasses.dataclass(frozen=True, order=True)
class Item:
    """One statement of a memory.

    Attributes:
      kind: `fact` is claimed to be known, `lead` is something to find out, `note` is prose that
        the format does not itemise.
      key: what the item is about; items with one key speak of the same thing.
      value: what it says.
    """

    kind: Kind
    key: str
    value: str


class MemoryFormat(Protocol):
    """The grammar of a memory."""

    def parse_items(self, text: str) -> tuple[list[Item], str | None]:
        """All items that parse, in order of appearance, and why `text` is malformed, or None."""


@dataclasses.dataclass(frozen=True)
class Written:
    """A WRITE reply, read.

    Attributes:
      text: the new document; '' if the reply never left its thinking.
      items: the items that parse, also those of a malformed document.
      malformed: None when the document is well formed (wf of method section 2), else the reason:
        `unclosed_think`, `over_budget`, `truncated` or one of the format's.
    """

    text: str
    items: tuple[Item, ...]
    malformed: str | None


def read_reply(
    reply: str,
    n_tokens: int,
    budget: int,
    finished: bool,
    fmt: MemoryFormat,
    think_opened: bool = False,
) -> Written:
    """Turns the reply of a WRITE turn into the new document.

    Args:
      reply: the decoded reply, end-of-turn token removed.
      n_tokens: tokens that count against the budget.
      budget: largest number of tokens a memory may have. Longer text is reported, not cut.
      finished: the reply ended by itself (a stop token was sampled).
      fmt: the grammar.
      think_opened: the prompt ended inside a thinking block (see `strip_thinking`).

    Raises:
      TypeError: the grammar does not return what it must.
    """
    text, malformed = strip_thinking(reply, think_opened)
    if malformed is not None:
        return Written("", (), malformed)
    parsed = fmt.parse_items(text)
    if not isinstance(parsed, tuple) or len(parsed) != 2:
        raise TypeError("MemoryFormat.parse_items must return (items, reason or None), but "
                        f"returned a {type(parsed).__name__}")
    items, grammar = parsed
    if n_tokens > budget:
        malformed = "over_budget"
    elif not finished:
        malformed = "truncated"
    else:
        malformed = grammar
    return Written(text, tuple(items), malformed)


def strip_thinking(reply: str, opened: bool = False) -> tuple[str, str | None]:
    """What a reply says after its thinking, whitespace around it removed.

    Everything up to the last `</think>` is thinking, whether its opening tag stands in the reply
    or stood in the prompt. Thinking that never ends gives ('', 'unclosed_think'): the monologue
    must not pass for an answer (method section 6).

    Args:
      reply: the decoded reply.
      opened: the prompt ended inside a thinking block, as with chat templates that write the
        opening tag themselves; a reply without a closing tag is then all thinking.
    """
    close = reply.rfind(_CLOSE)
    closed = close >= 0
    answer = reply[close + len(_CLOSE):] if closed else reply
    if _OPEN in answer or (opened and not closed):
        return "", "unclosed_think"
    return answer.strip(), None


@dataclasses.dataclass(frozen=True)
class Diff:
    """What changed between two memories, each taken as a set of items; every field is sorted.

    Attributes:
      kept: items of both.
      added: new items that replace none.
      changed: (old, new) pairs of one kind and key with different values.
      dropped: old items that none replaces.
    """

    kept: tuple[Item, ...]
    added: tuple[Item, ...]
    changed: tuple[tuple[Item, Item], ...]
    dropped: tuple[Item, ...]


def diff(before: Collection[Item], after: Collection[Item]) -> Diff:
    """Compares two memories; the order of items and repeated items do not matter."""
    old, new = set(before), set(after)
    gone, come = _by_subject(old - new), _by_subject(new - old)
    added, changed, dropped = [], [], []
    for subject in sorted(gone.keys() | come.keys()):
        left, right = gone.get(subject, []), come.get(subject, [])
        pairs = min(len(left), len(right))
        changed += zip(left[:pairs], right[:pairs], strict=True)
        dropped += left[pairs:]
        added += right[pairs:]
    return Diff(tuple(sorted(old & new)), tuple(added), tuple(changed), tuple(dropped))


def _by_subject(items: Collection[Item]) -> dict[tuple[str, str], list[Item]]:
    groups: dict[tuple[str, str], list[Item]] = defaultdict(list)
    for item in sorted(items):
        groups[item.kind, item.key].append(item)
    return groups


def retention_exact(before: Collection[Item], after: Collection[Item]) -> float | None:
    """Share of the old items that stand again unchanged; None when there were none."""
    new = set(after)
    return _share([item in new for item in before])


def retention_fuzzy(before: Collection[Item], after: Collection[Item]) -> float | None:
    """Share of the old items that stand again at least reworded; None when there were none.

    An item is reworded when the word sets of the two have a Jaccard index of `FUZZY_JACCARD`.
    """
    exact = set(after)
    candidates = {_words(item) for item in exact}
    return _share([
        item in exact or any(jaccard(_words(item), c) >= FUZZY_JACCARD for c in candidates)
        for item in before
    ])


def jaccard(a: Collection[str], b: Collection[str]) -> float:
    """Size of the intersection over size of the union of two sets of words; 1 for two empty."""
    a, b = set(a), set(b)
    return len(a & b) / len(a | b) if a or b else 1.0


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def _words(item: Item) -> frozenset[str]:
    return frozenset(f"{item.key} {item.value}".split())


_COLOURS = frozenset(("green", "red", "yellow", "orange", "pink", "turquoise"))
_FEATURE_PAIRS = (("small", "large"), ("blue", "purple"), ("round", "pointy"))
_FEATURES = frozenset(word for pair in _FEATURE_PAIRS for word in pair)


class CompactMemory:
    """The small policy's memory: words separated by white space, nothing else.

        green large              a fact: the green potion makes a stone large
        best small blue round    a fact: the stone worth most, as size, colour and shape
        try pink                 a lead

    The first word of a fact is a potion colour (green red yellow orange pink turquoise), the
    second a stone feature (small large blue purple round pointy): blue and purple are colours of
    stones only. The key is the potion colour, or `best`. A lead has the key of the fact that it
    would become. The empty document is well formed. The only reason is `grammar`; a word that
    starts no item is passed over, and what follows still parses.
    """

    def parse_items(self, text: str) -> tuple[list[Item], str | None]:
        words = text.split()
        items, reason, i = [], None, 0
        while i < len(words):
            item, length = _compact_item(words[i:i + 4])
            if item is None:
                reason = "grammar"
            else:
                items.append(item)
            i += length
        return items, reason


def _compact_item(words: Sequence[str]) -> tuple[Item | None, int]:
    """The item that starts these (at most four) words, and how many words it takes."""
    match words:
        case [colour, feature, *_] if colour in _COLOURS and feature in _FEATURES:
            return Item("fact", colour, feature), 2
        case ["try", colour, *_] if colour in _COLOURS:
            return Item("lead", colour, "try"), 2
        case ["best", *stone] if len(stone) == 3 and all(
            word in pair for word, pair in zip(stone, _FEATURE_PAIRS, strict=True)
        ):
            return Item("fact", "best", " ".join(stone)), 4
    return None, 1


LEAD_WORDS = frozenset(("try", "test", "check", "unknown"))
_FUNCTION_WORDS = frozenset(
    "a an the this that these those of to in on at by for from with and or but if then when as "
    "is are was were be it its use using always never".split()
)
_KEY_WORDS = 3


@dataclasses.dataclass(frozen=True)
class HeadedMemory:
    """Markdown with fixed headings and bullets, as language models write it.

    Each of `headings` stands once, in order, and each has at least `min_bullets` bullets (`- …` or
    `* …`, with a word in it). A bullet that starts with one of `LEAD_WORDS` is a lead, another one
    a fact; a paragraph is a note. Indented lines, lines that follow without a blank one, and
    fenced code belong to the bullet or paragraph before them, so a memory may quote any command.

    The value of an item is its text in lower case with white space, bold and code marks
    normalised. Its key is, the lead word aside, the first of: the first word that is one of
    `subjects` (say, the potion colours); the words before a colon, if at most three; the first
    three words that are not function words. The heading is no part of it: a bullet may move.

    Reasons: `empty`; `missing_section` (a heading is missing or out of order); `too_few_bullets`;
    `grammar` (text before the first heading, another heading, a heading twice).

    Attributes:
      headings: heading lines, such as `## Potion effects`; compared without regard to case, white
        space, bold marks and a final colon.
      min_bullets: smallest number of bullets of each section.
      subjects: words in lower case that bullets are about.
    """

    headings: tuple[str, ...]
    min_bullets: int
    subjects: tuple[str, ...] = ()

    def parse_items(self, text: str) -> tuple[list[Item], str | None]:
        if not text.strip():
            return [], "empty"
        wanted = [_heading(line) for line in self.headings]
        bullets = dict.fromkeys(wanted, 0)
        subjects = frozenset(self.subjects)
        found: list[str] = []
        items, stray = [], False
        for kind, block in _blocks(text):
            if kind == "heading":
                found.append(_heading(block))
                continue
            stray = stray or not found
            item = _headed_item(block, kind == "bullet", subjects)
            if item is None:
                continue
            items.append(item)
            if kind == "bullet" and found and found[-1] in bullets:
                bullets[found[-1]] += 1
        return items, self._reason(wanted, found, bullets, stray)

    def _reason(
        self, wanted: list[str], found: list[str], bullets: dict[str, int], stray: bool
    ) -> str | None:
        rest = iter(found)
        if not all(heading in rest for heading in wanted):  # `in` consumes: an ordered subset
            return "missing_section"
        if any(count < self.min_bullets for count in bullets.values()):
            return "too_few_bullets"
        return "grammar" if stray or found != wanted else None


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """The headings, bullets and paragraphs of a markdown text, each as (kind, its lines joined)."""
    kind, lines, fenced, gap = "heading", [], False, False
    for line in text.split("\n"):
        bare = line.strip()
        starts = None
        if not fenced and re.match(r"#{1,6}\s", line):
            starts = "heading"
        elif not fenced and bare.startswith(("- ", "* ")):
            starts, bare = "bullet", bare[2:].lstrip()
        elif bare and (kind == "heading" or (gap and not line[0].isspace())):
            starts = "paragraph"
        if starts is not None:
            if lines:
                yield kind, " ".join(lines)
            kind, lines = starts, []
        fence = bare.startswith(("```", "~~~")) and bare[:3] not in bare[3:]
        if bare and not fence:
            lines.append(bare)
        fenced ^= fence
        gap = not bare and not fenced
    if lines:
        yield kind, " ".join(lines)


def _heading(line: str) -> str:
    return " ".join(line.replace("**", "").split()).rstrip(": ").casefold()


def _headed_item(block: str, bullet: bool, subjects: frozenset[str]) -> Item | None:
    value = " ".join(block.replace("**", "").replace("`", "").split()).casefold()
    words = re.findall(r"\w+", value)
    if not words:
        return None
    lead = bullet and words[0] in LEAD_WORDS
    kind: Kind = "lead" if lead else "fact" if bullet else "note"
    topic = value[value.index(words[0]) + len(words[0]):].lstrip(" :") if lead else value
    # A lead word alone is about nothing but itself.
    telling = words[1:] if lead and len(words) > 1 else words
    return Item(kind, _topic_key(topic, telling, subjects), value)


def _topic_key(topic: str, words: list[str], subjects: frozenset[str]) -> str:
    named = next((word for word in words if word in subjects), None)
    if named is not None:
        return named
    name, colon, _ = topic.partition(":")
    before_colon = re.findall(r"\w+", name) if colon else []
    if 0 < len(before_colon) <= _KEY_WORDS:
        return " ".join(before_colon)
    telling = [word for word in words if word not in _FUNCTION_WORDS]
    return " ".join((telling or words)[:_KEY_WORDS])
