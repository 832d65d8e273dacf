"""The judge's protocol: two memories in, a score or None out."""

import dataclasses
from typing import Protocol

CRITERIA = ("discoveries", "corrections", "leads", "non_redundant")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Scores of one memory change.

    Attributes:
      criteria: 0, 1 or 2 for each of `CRITERIA`, in that order.

    Raises:
      ValueError: they are something else.
    """

    criteria: tuple[int, int, int, int]

    def __post_init__(self) -> None:
        scores = self.criteria
        if not isinstance(scores, tuple) or len(scores) != len(CRITERIA) or any(
            type(score) is not int or not 0 <= score <= 2 for score in scores
        ):
            raise ValueError(
                f"a verdict is a tuple of {len(CRITERIA)} integers from 0 to 2, one for each of "
                f"{', '.join(CRITERIA)}, but got {scores!r}"
            )

    @property
    def score(self) -> float:
        """e_t in [0, 1] (method section 2): the sum of the criteria over its maximum of 8."""
        return sum(self.criteria) / 8


class Judge(Protocol):
    """Scores what a task added to memory. It sees the two memories and nothing else."""

    async def score(self, before: str, after: str) -> Verdict | None:
        """The verdict, or None when the judge failed (never a zero). Must not raise."""

    def metrics(self) -> dict[str, float]:
        """Counts since the last call, by name; always the same names, none where none are kept."""
