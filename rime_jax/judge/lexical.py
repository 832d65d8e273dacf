"""A judge without a model: it compares the items of the two memories."""

from collections.abc import Collection

from rime_jax.judge.base import Verdict
from rime_jax.memory import Item, MemoryFormat, diff


class LexicalJudge:
    """Deterministic stand-in for a language model that scores by the rubric.

    Like every judge it sees the two memories only, so it cannot know what is true; `judge_items`
    says what it counts. A malformed memory is scored on the items that parse.
    """

    def __init__(self, fmt: MemoryFormat):
        self._fmt = fmt

    async def score(self, before: str, after: str) -> Verdict:
        return judge_items(self._fmt.parse_items(before)[0], self._fmt.parse_items(after)[0])

    def metrics(self) -> dict[str, float]:
        return {}


def judge_items(before: Collection[Item], after: Collection[Item]) -> Verdict:
    """The verdict on a change of items; facts and leads count by key, notes do not count.

    - discoveries: keys with a fact now and none before, at most 2.
    - corrections: keys whose fact has another value than before, at most 2.
    - leads: 2 for a new lead, 1 when there are only old ones, 0 for none. A lead counts only
      while its key has no fact in either memory: asking about what is known earns nothing, nor does
      forgetting a fact to ask about it.
    - non_redundant: net growth, clipped to 0..2: discoveries and new leads, less the keys that had
      a fact and have none now and the old leads given up without an answer. 0 when an item stands
      twice.

    Why it is so: a judge of two memories takes a garbled fact for a correction, and a writer can
    learn to feed it. So changed values pay under corrections alone, never as growth, and at
    most 2/8 however many change, less than the 4/8 of two discoveries. Exchanging facts for
    others pays no growth, and two values for one key count once.
    """
    change = diff(before, after)
    known, knows = _keys(before, "fact"), _keys(after, "fact")
    asked, asks = _keys(before, "lead"), _keys(after, "lead")
    open_leads = asks - known - knows
    new_leads = open_leads - asked
    learned, forgotten = knows - known, known - knows
    given_up = asked - asks - knows - known
    corrected = {new.key for _, new in change.changed if new.kind == "fact"}
    repeats = len(set(after)) < len(after)
    growth = len(learned) + len(new_leads) - len(forgotten) - len(given_up)
    return Verdict((
        min(2, len(learned)),
        min(2, len(corrected)),
        2 if new_leads else 1 if open_leads else 0,
        0 if repeats else min(2, max(0, growth)),
    ))


def _keys(items: Collection[Item], kind: str) -> set[str]:
    return {item.key for item in items if item.kind == kind}
