"""Tasks and libraries from files: rows of SWE-smith or of Continual Learning Bench.

A set that `build` made leaves PASS_TO_PASS out: a line before holds its library's `tests`.
"""

import gzip
import json
import lzma
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import sources, streams, validation
from rime_jax.envs.codebase import tasks as tasks_lib

_OPENERS: Mapping[str, Callable] = {".gz": gzip.open, ".xz": lzma.open}


def load_tasks(path: pathlib.Path) -> list[tasks_lib.CodeTask]:
    """Reads a JSONL file (also .gz, .xz) or a directory that `datasets.save_to_disk` wrote.

    Raises:
      RowError: a row is none of the two schemas, or an id stands twice; the message names it.
    """
    found: dict[str, tasks_lib.CodeTask] = {}
    for number, row in _completed(path):
        try:
            task = task_of(row)
        except tasks_lib.RowError as error:
            raise tasks_lib.RowError(f"{path}, row {number}: {error}") from error
        if task.instance_id in found:
            raise tasks_lib.RowError(f"{path}, row {number}: {task.instance_id} stands there twice")
        found[task.instance_id] = task
    return list(found.values())


def load_rows(path: pathlib.Path) -> list[Mapping[str, Any]]:
    """The rows of a file that are tasks, with PASS_TO_PASS.

    Raises:
      RowError: the file cannot be read.
    """
    return [row for _, row in _completed(path)]


def task_of(row: Mapping[str, Any]) -> tasks_lib.CodeTask:
    """A row of either schema: the benchmark's has a `test_patch`.

    Raises:
      RowError: it is none of them.
    """
    return (tasks_lib.from_benchmark if "test_patch" in row else tasks_lib.from_swe_smith)(row)


def load_streams(
    path: pathlib.Path,
) -> tuple[list[streams_lib.Stream], dict[str, streams.Entry]]:
    """Reads the study's published streams: ids, repositories and strategies, without the tasks.

    Returns:
      The streams in the order of the file (a segment ends where the repository changes; `info` as
      in `streams.plan`), and what their ids stand for.

    Raises:
      RowError: a row is no such stream.
    """
    found, entries = [], {}
    for number, row in enumerate(_rows(path), start=1):
        try:
            stream, own = _published_stream(row["metadata"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise tasks_lib.RowError(
                f"{path}, row {number}: no stream ({error!r}); `metadata` needs episode_index, "
                "difficulty_tier, and for each task instance_ids, stage_labels and strategies"
            ) from error
        found.append(stream)
        entries.update(own)
    return found, entries


def _published_stream(
    row: Mapping[str, Any],
) -> tuple[streams_lib.Stream, dict[str, streams.Entry]]:
    tasks, entries = [], {}
    repositories: list[str] = []
    places = zip(row["instance_ids"], row["stage_labels"], row["strategies"], strict=True)
    for name, repository, strategy in places:
        if repositories[-1:] != [repository]:
            repositories.append(repository)
        tasks.append(streams_lib.Task(name, name, len(repositories) - 1))
        entries[name] = streams.Entry(name, repository, streams.strategy_name(strategy))
    info = {"tier": row["difficulty_tier"], "repositories": repositories}
    return streams_lib.Stream(f"published-{row['episode_index']}", tuple(tasks), info), entries


def load_libraries(path: pathlib.Path) -> dict[str, sources.Library]:
    """Reads a JSON list of libraries (fields of `sources.Library`); `name` is what rows call them.

    Raises:
      SourceError: the file cannot be read, an entry is no library, or a name stands twice.
    """
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise sources.SourceError(f"{path} cannot be read as a JSON list of libraries: "
                                  f"{error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise sources.SourceError(f"{path} must hold a JSON list of objects, one for each library")
    found: dict[str, sources.Library] = {}
    for library in map(sources.library, rows):
        if library.name in found:
            raise sources.SourceError(f"{path}: {library.name} stands there twice")
        found[library.name] = library
    return found


def _completed(path: pathlib.Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Tasks with the numbers of their rows; those of a built set get their PASS_TO_PASS."""
    suites: dict[str, tuple[str, ...]] = {}
    for number, row in enumerate(_rows(path), start=1):
        if "tests" in row and "instance_id" not in row:
            suites[str(row.get("repo"))] = tasks_lib.test_ids(row, "tests")
            continue
        if "PASS_TO_PASS" not in row and (suite := suites.get(str(row.get("repo")))):
            passing = validation.passing(suite, tasks_lib.test_ids(row, "FAIL_TO_PASS"))
            row = {**row, "PASS_TO_PASS": list(passing)}
        yield number, row


def _rows(path: pathlib.Path) -> Iterator[Mapping[str, Any]]:
    if path.is_dir():
        yield from _dataset(path)
        return
    try:
        with _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise tasks_lib.RowError(f"{path}, line {number}: no JSON object")
                yield row
    except (OSError, EOFError, zlib.error, lzma.LZMAError, UnicodeDecodeError) as error:
        raise tasks_lib.RowError(f"{path} cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise tasks_lib.RowError(f"{path}: a line is no JSON ({error}); is the file cut off?"
                                 ) from error


def _dataset(path: pathlib.Path) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise tasks_lib.RowError(
            f"{path} is a directory, which needs the package `datasets` (pip install datasets); "
            "or give a JSONL file") from error
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise tasks_lib.RowError(f"{path} cannot be read as a saved dataset: {error}") from error
    if isinstance(loaded, datasets.DatasetDict):
        for part in loaded.values():
            yield from part
    else:
        yield from loaded
