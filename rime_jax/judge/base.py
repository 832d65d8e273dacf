"""The judge's protocol: two memories in, a score or None out."""

import dataclasses
from typing import Protocol

CRITERIA = ("discoveries", "corrections", "leads", "non_redundant")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Scores of one memory change.

    Attributes:
      criteria: 0, 1 or 2 for each of `CRITERIA`, in that order.
    """

    criteria: tuple[int, int, int, int]

    @property
    def score(self) -> float:
        """e_t in [0, 1] (method section 2): the sum of the criteria over its maximum of 8."""
        return sum(self.criteria) / 8


class Judge(Protocol):
    """Scores what a task added to memory. It sees the two memories and nothing else."""

    async def score(self, before: str, after: str) -> Verdict | None:
        """The verdict, or None when the judge failed (never a zero). Must not raise."""
