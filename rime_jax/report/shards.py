"""Rollouts as script files that the browser of rollouts loads one at a time.

A page that was opened as a file may run scripts beside it but not read other files. So the rows of
a dump become `data/<run>/step_<n>.js`, which hands gzip in base64 to the page. Texts stand once in
a table of the dump, however many rollouts share them. Conversations that would make the report too
large are cut in the middle; the dump in samples/ keeps them whole.
"""

import base64
import gzip
import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from rime_jax.report.dumps import Row

# Characters that are kept of a message, from the most to the fewest; of a memory four times that.
LIMITS = (100_000, 20_000, 8_000, 4_000, 2_000, 1_000, 500, 250, 100, 0)
_MEMORY_FACTOR = 4

_MEMORIES = ("memory_before", "memory_after")
_FIELDS = (
    "stream", "task", "group", "sibling", "position", "segment", "status", "judge_status", "turns",
    "reward", "performance", "criteria", "improvement", "writer_reward", "act_advantage",
    "act_weight", "write_advantage", "write_weight", "malformed", "format_errors", "metrics",
    "version",
)


class Budget:
    """Bytes that are left for the dumps that are still to come, shared evenly among them."""

    def __init__(self, total: int, dumps: int):
        self._left, self._dumps = total, dumps

    @property
    def share(self) -> int:
        return max(self._left, 0) // max(self._dumps, 1)

    def spend(self, used: int) -> None:
        self._left, self._dumps = self._left - used, self._dumps - 1


def write(path: pathlib.Path, run: int, step: int, rows: Sequence[Row], budget: Budget) -> int:
    """Writes the script of one dump; returns the characters kept of a message.

    Args:
      run: index of the run in the report.
      budget: is charged with what was written.
    """
    needed = _needed(rows)
    for limit in (LIMITS[0], *(limit for limit in LIMITS[1:] if limit < needed)):
        packed = gzip.compress(json.dumps(shard(rows, limit), separators=(",", ":")).encode(),
                               compresslevel=6, mtime=0)
        script = f'rimeShard({run},{step},"{base64.b64encode(packed).decode()}");\n'
        if len(script) <= budget.share:
            break
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    budget.spend(len(script))
    return limit


def shard(rows: Sequence[Row], limit: int) -> dict[str, Any]:
    """The rows as the browser reads them: {texts, rows}.

    A text is a string, or [its beginning, number of characters left out, its end]. Rows hold
    indices into the texts; a field that was not recorded is missing.
    """
    index: dict[tuple[str, int], int] = {}

    def put(text: str, kept: int) -> int:
        return index.setdefault((text, kept), len(index))

    packed = []
    for row in rows:
        found = {name: _rounded(row[name]) for name in _FIELDS if name in row}
        found |= {name: put(row[name], limit * _MEMORY_FACTOR) for name in _MEMORIES if name in row}
        if "transcript" in row:
            found["transcript"] = [
                [speaker, put(text, limit)] for speaker, text in row["transcript"]]
        packed.append(found)
    return {"texts": [_cut(text, kept) for text, kept in index], "rows": packed}


def _needed(rows: Sequence[Row]) -> float:
    """The smallest limit that cuts nothing."""
    messages = (len(text) for row in rows for _, text in row.get("transcript", []))
    memories = (len(row[name]) / _MEMORY_FACTOR for row in rows for name in _MEMORIES
                if name in row)
    return max(itertools.chain(messages, memories), default=0)


def _cut(text: str, limit: int) -> str | list[Any]:
    if len(text) <= limit:
        return text
    head = limit - limit // 3
    return [text[:head], len(text) - limit, text[len(text) - limit // 3:]]


def _rounded(value: Any) -> Any:
    """Four decimals are all that is shown."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return round(value, 4) if isinstance(value, float) else value
