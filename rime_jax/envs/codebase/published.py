"""The task set that comes with the program: bugs in libraries of the package index.

`rime_jax.envs.codebase.build` makes it. A directory holds `libraries.json`, the libraries, and
`tasks.jsonl.xz`: for each library a line with its tests that pass in the untouched tree, and for
each task a line in SWE-smith's schema without PASS_TO_PASS, which is those tests without the
failing ones (`validation.passing`). Sources are fetched from the index by version.
"""

import json
import lzma
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from rime_jax.envs.codebase import loaders, sources, validation
from rime_jax.envs.codebase import tasks as tasks_lib

DIRECTORY = pathlib.Path(__file__).parents[2] / "assets" / "codebase-v1"
LIBRARIES, TASKS = "libraries.json", "tasks.jsonl.xz"


def load(
    tasks_file: str = "", libraries_file: str = ""
) -> tuple[list[tasks_lib.CodeTask], dict[str, sources.Library]]:
    """Tasks and the libraries that they are of: those of two files, or the shipped set.

    Raises:
      RowError, SourceError: a file is wrong.
      ValueError: one file is given without the other.
    """
    if bool(tasks_file) != bool(libraries_file):
        raise ValueError("the file of tasks and that of libraries (env.tasks_file, "
                         "env.libraries_file) go together; give both or neither")
    if not tasks_file:
        return tasks(), libraries()
    return (loaders.load_tasks(pathlib.Path(tasks_file)),
            loaders.load_libraries(pathlib.Path(libraries_file)))


def check_listed(
    own: Iterable[tasks_lib.CodeTask], known: Mapping[str, sources.Library]
) -> None:
    """Raises SourceError where a task is of a library that is not listed."""
    if unknown := sorted({task.source for task in own} - set(known)):
        raise sources.SourceError(
            f"the list of libraries does not say where {', '.join(unknown[:4])} "
            f"{'and others ' if len(unknown) > 4 else ''}can be fetched, of which there are "
            "tasks; add an entry with that `name` (fields: docs/codebase.md)")


def tasks(directory: pathlib.Path = DIRECTORY) -> list[tasks_lib.CodeTask]:
    """All tasks of a set.

    Raises:
      RowError: a row is no task.
    """
    return [tasks_lib.from_swe_smith(row) for row in rows(directory)]


def libraries(directory: pathlib.Path = DIRECTORY) -> dict[str, sources.Library]:
    """The libraries of a set by their names, which are `CodeTask.source`.

    Raises:
      SourceError: an entry is no library, or the directory holds none.
    """
    return loaders.load_libraries(directory / LIBRARIES)


def rows(directory: pathlib.Path = DIRECTORY) -> list[Mapping[str, Any]]:
    """The tasks of a set as SWE-smith's rows; beside its fields those of `build.row`.

    Raises:
      RowError: the file is damaged, or the directory holds none.
    """
    try:
        return loaders.load_rows(directory / TASKS)
    except tasks_lib.RowError as error:
        raise tasks_lib.RowError(
            f"{error}; make it with python -m rime_jax.envs.codebase.build") from error


def write(
    directory: pathlib.Path, libraries: Iterable[sources.Library],
    suites: Mapping[str, tuple[str, ...]], rows: Iterable[Mapping[str, Any]],
) -> None:
    """Writes a set; the old one stays until the new one is complete.

    Args:
      directory: is made if it is not there.
      libraries: those that `rows` come from.
      suites: library → tests that pass in its untouched tree.
      rows: with PASS_TO_PASS.
    """
    directory.mkdir(parents=True, exist_ok=True)
    listed = [library.__dict__ for library in libraries]
    lines = [{"repo": name, "tests": validation.useful(suite)} for name, suite in suites.items()]
    lines += [{k: v for k, v in row.items() if k != "PASS_TO_PASS"} for row in rows]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    for name, data in ((LIBRARIES, (json.dumps(listed, indent=2) + "\n").encode()),
                       (TASKS, lzma.compress(text.encode(), preset=9))):
        new = directory / f"{name}.new"
        new.write_bytes(data)
        new.replace(directory / name)
