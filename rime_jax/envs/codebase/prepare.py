"""Fetches what the tasks of a set need, so that training and evaluation need no network.

    python -m rime_jax.envs.codebase.prepare                      the shipped set
    python -m rime_jax.envs.codebase.prepare --validate           and runs the tests of every task
    python -m rime_jax.envs.codebase.prepare --tasks=FILE --libraries=FILE      a set of your own

For each library its sources and an environment with what its tests require; with --validate also a
verdict on each task: whether its tests fail with the bug and pass with the repair. All of it lies
in the cache (`env.cache_dir`): a program that was killed goes on where it was.
"""

import argparse
import concurrent.futures
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

from rime_jax.envs.codebase import (
    backends,
    published,
    sandbox,
    sources,
    tasks,
    trees,
    validation,
)
from rime_jax.tracking import progress


def prepare(
    store: trees.TreeStore, libraries: Mapping[str, sources.Library], workers: int,
    bar: progress.Progress | None = None,
) -> dict[str, str]:
    """Fetches and installs; library → why it cannot be had, for those that cannot.

    Args:
      store: of the libraries.
      libraries: by name.
      workers: libraries at once.
      bar: shows how many are done.
    """
    def one(name: str) -> str:
        try:
            store.base(name)
            return ""
        except (sources.SourceError, OSError) as error:
            return str(error)

    return _failures(one, list(libraries), workers, bar)


def validate(
    store: trees.TreeStore, wanted: Sequence[tasks.CodeTask], box: sandbox.Sandbox,
    cache: pathlib.Path, workers: int, bar: progress.Progress | None = None,
) -> dict[str, str]:
    """Runs the tests of tasks; instance id → why it is no task, for those that are none.

    Args:
      store: of the tasks.
      wanted: the tasks.
      box: where tests run.
      cache: of verdicts.
      workers: tasks at once.
      bar: shows how many are done.

    Raises:
      SandboxError: the sandbox failed.
    """
    by_id = {task.instance_id: task for task in wanted}

    def one(name: str) -> str:
        try:
            return validation.validate(by_id[name], store, box, cache).reason
        except sources.SourceError as error:
            return str(error)

    return _failures(one, list(by_id), workers, bar)


def _failures(
    function: Callable[[str], str], names: Sequence[str], workers: int,
    bar: progress.Progress | None,
) -> dict[str, str]:
    """Name → what the function says of it, where it says something."""
    failed = {}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(function, name): name for name in names}
        try:
            for done, future in enumerate(concurrent.futures.as_completed(running), start=1):
                if reason := future.result():
                    failed[running[future]] = reason
                if bar is not None:
                    bar.update(done, {"failed": len(failed)})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {name: failed[name] for name in names if name in failed}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rime_jax.envs.codebase.prepare", description=__doc__.split("\n\n")[0])
    parser.add_argument("--tasks", default="", help="JSONL of tasks (default: the shipped set)")
    parser.add_argument("--libraries", default="", help="JSON list of their libraries")
    parser.add_argument("--cache-dir", default="", help="env.cache_dir of the configuration")
    parser.add_argument("--validate", action="store_true", help="run the tests of every task")
    parser.add_argument("--sandbox", default="auto", choices=backends.NAMES,
                        help="where tests run; default auto (bubblewrap)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1,
                        help="libraries or tasks at once; default: the number of cores")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    cache = trees.cache_directory(arguments.cache_dir)
    try:
        own, libraries = published.load(arguments.tasks, arguments.libraries)
        published.check_listed(own, libraries)
        needed = {name: libraries[name] for name in dict.fromkeys(task.source for task in own)}
        # Before anything is fetched: without a sandbox none of it is of use.
        box = backends.make(arguments.sandbox, sandbox.Limits())
        try:
            return _prepare(arguments, own, needed, cache, box)
        finally:
            box.close()
    except (ValueError, sandbox.SandboxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on where it was.", file=sys.stderr)
        return 130


def _prepare(
    arguments: argparse.Namespace, own: Sequence[tasks.CodeTask],
    needed: Mapping[str, sources.Library], cache: pathlib.Path, box: sandbox.Sandbox,
) -> int:
    store = trees.TreeStore(cache, own, needed)
    print(f"Preparing {len(needed)} libraries in {cache}", flush=True)
    failed = _with_bar(len(needed), lambda bar: prepare(store, needed, arguments.workers, bar))
    for name, why in failed.items():
        print(f"{name} cannot be had: {why}", file=sys.stderr)
    if not arguments.validate:
        return 1 if failed else 0
    valid = [task for task in own if task.source not in failed]
    print(f"Running the tests of {len(valid)} tasks with and without their repairs", flush=True)
    bad = _with_bar(
        len(valid), lambda bar: validate(store, valid, box, cache, arguments.workers, bar))
    for name, why in bad.items():
        print(f"{name} is no task: {why}", file=sys.stderr)
    print(f"{len(valid) - len(bad)} of {len(own)} tasks are valid")
    return 1 if failed or bad else 0


def _with_bar(
    total: int, work: Callable[[progress.Progress], dict[str, str]]
) -> dict[str, str]:
    bar = progress.Progress(total)
    try:
        return work(bar)
    finally:
        bar.close()


if __name__ == "__main__":
    sys.exit(main())
