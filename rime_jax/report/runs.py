"""Reads a run directory for the report, whatever state it is in.

A run may still be training, may have been killed, may be older than a field. What cannot be read
is left out and said in `Run.problems`; only a directory that is no run at all is an error.
"""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rime_jax import errors
from rime_jax.report import dumps as dumps_lib
from rime_jax.tracking import metrics
from rime_jax.tracking.run_dir import RunDir
from rime_jax.tracking.values import is_number


class ReportError(errors.UserError):
    """Something that a report cannot be made of; the message says what, where and the remedy."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run directory.

    Attributes:
      path: the directory.
      name: unique among the runs of a report.
      config: dotted option → value, as the run saved it: options of today may be missing.
      lines: of metrics.jsonl, ascending in `step`; with the scalars of each.
      evaluations: name of the file in eval/ without its ending → its JSON.
      dumps: step → file of samples/, ascending.
      problems: what could not be read, a sentence each; grows while `rows` are read.
    """

    path: pathlib.Path
    name: str
    config: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    evaluations: Mapping[str, Mapping[str, Any]]
    dumps: Mapping[int, pathlib.Path]
    problems: list[str]

    @property
    def steps(self) -> int:
        """The last iteration that left a line; 0: none yet."""
        return max((line["step"] for line in self.lines), default=0)

    def curve(self, tag: str) -> list[tuple[int, float]]:
        """(step, value) of a metric, where it has one."""
        return [(line["step"], float(line[tag])) for line in self.lines if is_number(line.get(tag))]

    def rows(self, step: int) -> list[dumps_lib.Row]:
        """The rows of a dump that can be read; what cannot goes to `problems`."""
        file = self.dumps[step]
        try:
            rows, lost = dumps_lib.read(file)
        except OSError as error:
            self.problems.append(f"{file.name} cannot be read: {error.strerror}")
            return []
        if lost:
            self.problems.append(f"{file.name}: {lost} {'line' if lost == 1 else 'lines'} "
                                 "could not be read")
        return rows


def read(paths: Sequence[pathlib.Path]) -> list[Run]:
    """The runs of a report, in the order given.

    Raises:
      ReportError: a path is no run directory, or stands twice.
    """
    resolved = [path.resolve() for path in paths]
    for path, count in collections.Counter(resolved).items():
        if count > 1:
            raise ReportError(f"{path} is named {count} times; name each run once")
    names = _names(resolved)
    return [_read(path, name) for path, name in zip(paths, names, strict=True)]


def _read(path: pathlib.Path, name: str) -> Run:
    files = RunDir(path)
    if not files.config.is_file():
        raise ReportError(f"{path} is no run directory (it has no config.json); name the directory "
                          "that rime_jax.train made, such as runs/rime")
    problems: list[str] = []
    config = _json(files.config, problems)
    evaluations = {}
    for file in sorted(files.eval.glob("*.json")):
        found = _json(file, problems)
        if found:
            evaluations[file.stem] = found
    try:
        lines = sorted(metrics.read(files.metrics), key=lambda line: line["step"])
    except OSError as error:
        problems.append(f"{files.metrics.name} cannot be read: {error.strerror}")
        lines = []
    dumps = {step: files.samples_file(step) for step in files.sample_steps()}
    return Run(path, name, dict(_flat(config)), lines, evaluations, dumps, problems)


def _json(path: pathlib.Path, problems: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(found, dict):
        problems.append(f"{path.name} holds no JSON object")
        return {}
    return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, node in tree.items():
        if isinstance(node, dict):
            yield from _flat(node, f"{prefix}{name}.")
        else:
            yield prefix + name, node


def _names(paths: Sequence[pathlib.Path]) -> list[str]:
    """The shortest ends of the paths that differ: a sweep may hold many runs of one name."""
    for parts in range(1, 1 + max(len(p.parts) for p in paths)):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names
