"""One line on the terminal per iteration."""

import collections
import datetime
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

# Iterations in the moving average of the time per iteration.
_WINDOW = 20


class Progress:
    """Prints step, time and chosen numbers; on a terminal one line that is written over.

    The time left comes from a moving average over the last updates; what came before the first
    update of this process is left out of it, since it compiles.
    """

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts the clock.

        Args:
          total: the number of the last step.
          stream: where to print; None: standard output.
          every_s: least number of seconds between lines where `stream` is no terminal; the first
            and the last step are always printed.
          clock: seconds; for tests.
        """
        self._total = total
        self._stream = stream or sys.stdout
        self._every_s = every_s
        self._clock = clock
        self._start = self._now = clock()
        self._printed_at: float | None = None
        self._last_step: int | None = None
        self._durations: collections.deque[float] = collections.deque(maxlen=_WINDOW)

    def update(self, step: int, numbers: Mapping[str, float]) -> None:
        """Reports that `step` is finished; `numbers` are shown in their order."""
        before, self._now = self._now, self._clock()
        if self._last_step is not None:
            self._durations.append((self._now - before) / max(step - self._last_step, 1))
        self._last_step = step
        line = self._line(step, numbers)
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            # Clears what a longer line left behind.
            self._print(f"\r\x1b[K{line[:width]}")
        elif (
            self._printed_at is None
            or step >= self._total
            or self._now - self._printed_at >= self._every_s
        ):
            self._print(line + "\n")

    def close(self) -> None:
        """Ends the terminal's line; may be called more than once."""
        if self._stream.isatty() and self._printed_at is not None:
            self._print("\n")
            self._printed_at = None

    def _print(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
        self._printed_at = self._now

    def _line(self, step: int, numbers: Mapping[str, float]) -> str:
        parts = [f"step {step}/{self._total}", f"{_duration(self._now - self._start)} elapsed"]
        if self._durations:
            average = sum(self._durations) / len(self._durations)
            left = average * max(self._total - step, 0)
            parts += [f"{_duration(left)} left", f"{average:.2f} s/step"]
        parts += [f"{name} {value:.4g}" for name, value in numbers.items()]
        return " | ".join(parts)


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
