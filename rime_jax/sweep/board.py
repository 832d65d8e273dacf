"""The table of a sweep on the terminal."""

import enum
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from rime_jax.sweep.jobs import Job, Progress


class State(enum.StrEnum):
    """What becomes of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    BLOCKED = "blocked"
    SAME = "same"


class Board:
    """On a terminal a table that is drawn over; elsewhere a line whenever a state changes."""

    def __init__(self, stream: TextIO | None = None):
        """Args:
          stream: None: standard output.
        """
        self._stream = stream or sys.stdout
        self._drawn, self._told = 0, {}

    def show(
        self, jobs: Sequence[Job], states: Mapping[str, State], notes: Mapping[str, str],
        progress: Mapping[str, Progress],
    ) -> None:
        """Draws what has changed since the last call."""
        if self._stream.isatty():
            self._draw(table(jobs, states, notes, progress).splitlines())
            return
        for job in jobs:
            now = (states[job.name], notes.get(job.name))
            if self._told.get(job.name, (State.WAITING, None)) != now:
                line = row(job, states[job.name], notes.get(job.name, ""), progress[job.name])
                print(f"{time.strftime('%H:%M:%S')}  {'  '.join(line)}".rstrip(),
                      file=self._stream, flush=True)
            self._told[job.name] = now

    def _draw(self, lines: list[str]) -> None:
        size = shutil.get_terminal_size()
        if len(lines) >= size.lines:  # What has left the screen cannot be drawn over.
            lines = lines[: size.lines - 2] + [f"… and {len(lines) - size.lines + 2} more"]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        body = "".join(f"\x1b[K{line[: size.columns - 1]}\n" for line in lines)
        self._stream.write(f"{up}{body}\x1b[J")
        self._stream.flush()
        self._drawn = len(lines)


def table(
    jobs: Sequence[Job], states: Mapping[str, State], notes: Mapping[str, str],
    progress: Mapping[str, Progress],
) -> str:
    """All jobs, aligned."""
    rows: list[tuple[str, ...]] = [("run", "state", "step", "performance", "gain", "")]
    rows += [row(job, states[job.name], notes.get(job.name, ""), progress[job.name])
             for job in jobs]
    widths = [max(len(own[i]) for own in rows) for i in range(5)]
    left = (0, 1)
    return "\n".join("  ".join([
        *(cell.ljust(width) if i in left else cell.rjust(width)
          for i, (cell, width) in enumerate(zip(own[:5], widths, strict=True))), own[5],
    ]).rstrip() for own in rows)


def row(job: Job, state: State, note: str, at: Progress) -> tuple[str, ...]:
    """The cells of a job."""
    return (job.name, state.value, f"{at.step}/{job.config.steps}", _number(at.performance),
            _number(at.gain), note)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"
