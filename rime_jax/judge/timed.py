"""A judge that measures how long its verdicts take."""

import time

from rime_jax.judge import base


class TimedJudge:
    """Passes everything on to a judge.

    Attributes:
      seconds: time spent waiting for verdicts, summed over calls (which may overlap).
    """

    def __init__(self, judge: base.Judge):
        self._judge = judge
        self.seconds = 0.0

    async def score(self, before: str, after: str) -> base.Verdict | None:
        began = time.monotonic()
        try:
            return await self._judge.score(before, after)
        finally:
            self.seconds += time.monotonic() - began

    def metrics(self) -> dict[str, float]:
        return self._judge.metrics()
