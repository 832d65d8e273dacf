"""metrics.jsonl: one JSON object per iteration, readable after a kill at any moment."""

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

# No run has so many steps: a line that says so is damaged.
_STEPS = 1 << 53


class MetricsLog:
    """Appends one line per step to `path`; each line is on disk when `write` returns.

    Used as `with MetricsLog(path) as log`, or closed by `close`.
    """

    def __init__(self, path: str | os.PathLike):
        """Opens `path`; a torn last line is ended, so that it cannot swallow the next one."""
        self._path = pathlib.Path(path)
        self._last = max((line["step"] for line in read(path)), default=-1)
        self._file = self._path.open("ab")
        if not _ends_with_newline(self._path):
            self._file.write(b"\n")

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends {"step": step, **metrics}.

        Args:
          step: above every step in the file.
          metrics: numbers (Python, numpy or JAX scalars), strings, None; a number that is not
            finite is written as null, since JSON has no word for it.

        Raises:
          ValueError: the file already holds this step or a later one.
        """
        if step <= self._last:
            raise ValueError(
                f"{self._path} already has step {self._last}, so step {step} would appear twice; "
                f"call truncate(path, {step - 1}) before resuming"
            )
        line = json.dumps({"step": step, **jsonable(metrics)}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        self._last = step

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The lines of a metrics file in order; torn lines are left out; [] where there is no file."""
    try:
        lines = pathlib.Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [record for line in lines if (record := parse(line)) is not None]


def truncate(path: str | os.PathLike, step: int) -> None:
    """Drops the lines after `step`, and torn ones, before a run resumes from that step.

    The file is replaced as a whole: a kill leaves the old or the new one.
    """
    kept = [json.dumps(record) + "\n" for record in read(path) if record["step"] <= step]
    if kept or pathlib.Path(path).exists():
        write_atomically(path, "".join(kept).encode())


def jsonable(value: Any) -> Any:
    """`value` with plain numbers for numpy and JAX scalars, and None for nan and infinities."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return jsonable(np.asarray(value).tolist())


def write_atomically(path: str | os.PathLike, data: bytes) -> None:
    """Writes a file so that `path` is the old or the new one, whatever happens meanwhile."""
    path = pathlib.Path(path)
    # A name of its own for each process, as two may write the same file at once.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        # On a full disk it would stay in the way.
        temporary.unlink(missing_ok=True)
        raise


def read_object(path: str | os.PathLike) -> dict[str, Any]:
    """The JSON object that a file holds; {} where there is none, whatever is the matter."""
    try:
        return _object(pathlib.Path(path).read_bytes())
    except OSError:
        return {}


def parse(line: bytes) -> dict[str, Any] | None:
    """The record that a line holds; None where it is torn or says no step."""
    record = _object(line)
    step = record.get("step")
    return record if type(step) is int and 0 <= step < _STEPS else None


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _ends_with_newline(path: pathlib.Path) -> bool:
    data = path.read_bytes()
    return not data or data.endswith(b"\n")
