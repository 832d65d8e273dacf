"""Reads a dump of rollouts, whatever became of it: `tracking.texts.sample_rows` wrote its rows.

A run may have been killed while it wrote, a file may have been cut or mended by hand. What can be
read is kept, with the fields that are of their type; a field that is not is as if it was never
recorded.
"""

import json
import pathlib
import zlib
from collections.abc import Callable
from typing import Any

from rime_jax.tracking.values import is_number

Row = dict[str, Any]

_CHUNK = 1 << 16


def read(path: pathlib.Path) -> tuple[list[Row], int]:
    """The rows of a dump that say where they belong, and the number of lines that were lost.

    Raises:
      OSError: the file cannot be read at all.
    """
    rows, lost = [], 0
    data, whole = _decompressed(path.read_bytes())
    for line in data.split(b"\n"):
        if line.strip():
            row = _row(line)
            if row is None:
                lost += 1
            else:
                rows.append(row)
    # Where the file breaks off inside a line, that line is counted already.
    return rows, lost + (not whole and not lost)


def _row(line: bytes) -> Row | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    row = {name: found[name] for name, fits in _FIELDS.items()
           if name in found and fits(found[name])}
    return row if row.keys() >= {"group", "sibling", "position"} else None


def _decompressed(data: bytes) -> tuple[bytes, bool]:
    """The text of a gzip file up to where it breaks off, and whether that is its end."""
    parts = []
    while data:  # a file may hold several members
        stream, start = zlib.decompressobj(wbits=31), 0
        try:
            while start < len(data) and not stream.eof:
                parts.append(stream.decompress(data[start:start + _CHUNK]))
                start += _CHUNK
        except zlib.error:
            return b"".join(parts), False
        if not stream.eof:
            return b"".join(parts), False
        data = stream.unused_data + data[start:]
    return b"".join(parts), True


def _number(value: Any) -> bool:
    return value is None or is_number(value)


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _place(first: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and first <= value < 1 << 31)


def _criteria(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and len(value) == 4 and all(map(is_number, value)))


def _named_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))


def _transcript(value: Any) -> bool:
    return isinstance(value, list) and all(map(_turn, value))


def _turn(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(x, str) for x in value)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("group", "sibling"), _place(0)), "position": _place(1),
    **dict.fromkeys(("stream", "task", "status", "judge_status", "malformed"), _text),
    **dict.fromkeys((
        "segment", "turns", "reward", "performance", "improvement", "writer_reward",
        "act_advantage", "act_weight", "write_advantage", "write_weight", "version"), _number),
    **dict.fromkeys(("memory_before", "memory_after"), lambda value: isinstance(value, str)),
    "criteria": _criteria, "metrics": _named_numbers, "format_errors": _named_numbers,
    "transcript": _transcript, "info": lambda value: isinstance(value, dict),
}
