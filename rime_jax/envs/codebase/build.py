"""Makes a task set: fetches libraries, breaks their functions, keeps what their tests notice.

    python -m rime_jax.envs.codebase.build --out=DIR                    the set that is shipped
    python -m rime_jax.envs.codebase.build --out=DIR --libraries=FILE   from a list of your own

DIR/set is the task set (`published.py`). DIR/work holds sources, environments and a verdict per
bug: a run that was killed goes on where it was, and ends in the same set. Needs a sandbox, the
package index and libcst (extra `build`).
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rime_jax.envs.codebase import (
    backends,
    bugs,
    loaders,
    published,
    sandbox,
    sources,
    statements,
    streams,
    trees,
    validation,
)
from rime_jax.tracking import progress

# A function is broken at most so often, each time by another strategy.
_TIMES = 2
_SEED = 24


class BuildError(ValueError):
    """What cannot be built; the message names the remedy."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Attributes:
      out: the directory.
      seed: of all choices.
      per_library: tasks wanted of each library.
      tries: bugs that are tried per wanted task, at most.
      workers: libraries at once.
    """

    out: pathlib.Path
    seed: int = _SEED
    per_library: int = 25
    tries: int = 4
    workers: int = os.cpu_count() or 1


def build(
    libraries: Mapping[str, sources.Library], box: sandbox.Sandbox, options: Options,
    bar: progress.Progress | None = None,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Makes the set and writes it to `out`/set.

    Args:
      libraries: by name.
      box: where tests run.
      options: see `Options`.
      bar: shows how many tasks there are.

    Returns:
      The rows, and library → why it gave none.

    Raises:
      BuildError: a library is held out for the benchmark.
      SandboxError: the sandbox failed.
    """
    for library in libraries.values():
        held_out = streams.HELD_OUT.intersection(_folded(library))
        if held_out:
            raise BuildError(f"{library.name} belongs to the benchmark's {min(held_out)}, which "
                             "must not be trained on; leave it out of the list of libraries")
    store = trees.TreeStore(options.out / "work", [], libraries)
    run = _Run(bar, options.per_library)

    def of_library(library: sources.Library) -> "_Yield | str":
        try:
            found = _of_library(library, store, box, options, run)
            return found if found.rows else "its tests notice none of the bugs"
        except (sources.SourceError, validation.ValidationError) as error:
            return str(error)
        finally:
            run.finish(library.name)

    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        try:
            made = dict(zip(libraries, pool.map(of_library, libraries.values()), strict=True))
        except BaseException:
            # The other threads would first work on to the ends of their libraries.
            run.stop.set()
            raise
    good = {name: found for name, found in made.items() if not isinstance(found, str)}
    rows = [row for found in good.values() for row in found.rows]
    published.write(options.out / "set", [libraries[name] for name in good],
                    {name: found.suite for name, found in good.items()}, rows)
    return rows, {name: why for name, why in made.items() if isinstance(why, str)}


def row(
    library: sources.Library, suite: tuple[str, ...], bug: bugs.Bug, failed: tuple[str, ...],
    statement: str,
) -> dict[str, Any]:
    """A row of SWE-smith; beside its fields: licence, source_url, strategy, path, function."""
    return {
        "instance_id": f"{library.name}.{bug.strategy}__{bug.digest}",
        "repo": library.name,
        "base_commit": library.url,
        "image_name": "",
        "patch": bug.patch,
        "FAIL_TO_PASS": list(failed),
        "PASS_TO_PASS": list(validation.passing(suite, failed)),
        "problem_statement": statement,
        "licence": library.licence,
        "source_url": library.url,
        "strategy": bug.strategy,
        "path": bug.path,
        "function": bug.function,
    }


@dataclasses.dataclass(frozen=True)
class _Yield:
    suite: tuple[str, ...]
    rows: list[dict[str, Any]]


def _of_library(
    library: sources.Library, store: trees.TreeStore, box: sandbox.Sandbox, options: Options,
    run: "_Run",
) -> _Yield:
    base = store.base(library.name)
    verdicts = _Verdicts(options.out / "work" / "verdicts" / f"{library.name}.jsonl")
    suite = verdicts.suite(box, base)
    title = (library.url.removeprefix("pypi:").replace("==", " ")
             if library.url.startswith("pypi:") else library.name)
    rows: list[dict[str, Any]] = []
    broken: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for tried, bug in enumerate(bugs.find(base.tree, options.seed)):
        if run.stop.is_set():
            break
        if len(rows) == options.per_library or tried == options.tries * options.per_library:
            break
        earlier = broken[bug.path, bug.function]
        if len(earlier) == _TIMES or bug.strategy in earlier:
            continue
        failed, shown = verdicts.verdict(bug, box, base, suite)
        if not failed:
            continue
        statement = statements.write(title, failed, shown, bug.patch,
                                     f"{options.seed} {bug.digest}")
        if statement is not None:
            earlier.append(bug.strategy)
            rows.append(row(library, suite.tests, bug, failed, statement))
            run.add(library.name)
    return _Yield(suite.tests, rows)


class _Verdicts:
    """What was found out about a library, line by line in a file that survives any kill."""

    def __init__(self, file: pathlib.Path):
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._suite: validation.Suite | None = None
        self._known: dict[str, dict] = {}
        whole = 0
        for line in _lines(file):
            value = json.loads(line)
            whole += len(line)
            if "seconds" in value:
                self._suite = validation.Suite(tuple(value["tests"]), value["seconds"])
            else:
                self._known[value["bug"]] = value
        # The rest of a line that a kill cut off would spoil the next one.
        if file.exists():
            os.truncate(file, whole)

    def suite(self, box: sandbox.Sandbox, base: sandbox.Base) -> validation.Suite:
        if self._suite is None:
            self._suite = validation.measure(box, base)
            self._append(dataclasses.asdict(self._suite))
        return self._suite

    def verdict(
        self, bug: bugs.Bug, box: sandbox.Sandbox, base: sandbox.Base, suite: validation.Suite
    ) -> tuple[tuple[str, ...], list[statements.Failure]]:
        """The tests that fail with a bug (none: it makes no task), and what some of them print."""
        if bug.digest not in self._known:
            verdict = validation.try_bug(box, base, suite, bug.patch)
            shown = statements.failures(verdict.output, verdict.failed)
            self._known[bug.digest] = {
                "bug": bug.digest, "reason": verdict.reason, "failed": list(verdict.failed),
                "shown": [dataclasses.asdict(failure) for failure in shown]}
            self._append(self._known[bug.digest])
        known = self._known[bug.digest]
        return tuple(known["failed"]), [statements.Failure(f["test"], tuple(f["lines"]))
                                        for f in known["shown"]]

    def _append(self, value: dict) -> None:
        with open(self._file, "a") as file:
            file.write(json.dumps(value) + "\n")


def _lines(file: pathlib.Path) -> Iterator[bytes]:
    if file.exists():
        yield from (line for line in file.read_bytes().splitlines(True) if line.endswith(b"\n"))


class _Run:
    """What the threads share: how many tasks there are, for the bar, and whether to stop."""

    def __init__(self, bar: progress.Progress | None, per_library: int):
        self.stop = threading.Event()
        self._bar, self._full = bar, per_library
        self._made: collections.Counter[str] = collections.Counter()
        self._finished: set[str] = set()
        self._lock = threading.Lock()

    def add(self, library: str) -> None:
        with self._lock:
            self._made[library] += 1
            self._show()

    def finish(self, library: str) -> None:
        """A library with fewer tasks than wanted counts in full."""
        with self._lock:
            self._finished.add(library)
            self._show()

    def _show(self) -> None:
        if self._bar is not None:
            open_ = sum(n for name, n in self._made.items() if name not in self._finished)
            self._bar.update(open_ + self._full * len(self._finished),
                             {"tasks": self._made.total(), "libraries": len(self._finished)})


def _folded(library: sources.Library) -> set[str]:
    """Words of a library's name and address."""
    text = f"{library.name} {library.url}".lower()
    return set("".join(c if c.isalnum() else " " for c in text).split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rime_jax.envs.codebase.build", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the directory")
    parser.add_argument("--libraries", type=pathlib.Path,
                        default=published.DIRECTORY / published.LIBRARIES,
                        help="JSON list of libraries (default: those of the shipped set)")
    parser.add_argument("--sandbox", choices=backends.NAMES, default="auto",
                        help="where tests run (default: auto)")
    for field in dataclasses.fields(Options)[1:]:
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default,
                            help=f"default {field.default}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = vars(_parser().parse_args(argv))
    file, where = arguments.pop("libraries"), arguments.pop("sandbox")
    options = Options(**arguments)
    try:
        libraries = loaders.load_libraries(file)
        bar = progress.Progress(options.per_library * len(libraries))
        box = backends.make(where, sandbox.Limits())
        try:
            rows, failed = build(libraries, box, options, bar)
        finally:
            bar.close()
            box.close()
    except (ValueError, sandbox.SandboxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on where it was.", file=sys.stderr)
        return 130
    for name, why in failed.items():
        print(f"{name} gave no tasks: {why}", file=sys.stderr)
    print(f"{len(rows)} tasks of {len({row['repo'] for row in rows})} libraries in "
          f"{options.out / 'set'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
