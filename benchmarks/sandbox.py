"""The sandbox: what a command, a workspace and an episode cost, and what they leave behind.

    python -m benchmarks.sandbox [--episodes=1000] [--at_once=16]

Each episode is a scripted agent that repairs one function of a small made-up repository, runs its
tests, submits and is graded. Needs the repository of this file: the environment is the tests' own.
"""

import argparse
import concurrent.futures
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

from rime_jax import streams
from rime_jax.envs.codebase import bubblewrap, environment, interface, sandbox, trees
from tests.envs.codebase import repositories

_REPEATS = 100
_REPLIES = ("sed -i 's/total = a - b/total = a + b/' alpha.py", "python -m pytest -q | tail -2",
            f"echo {interface.SENTINEL}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--at_once", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store, tasks = _prepared(pathlib.Path(folder))
        base = store.prepare(tasks[0])
        for ready in (0, 2):
            box = bubblewrap.Bubblewrap(sandbox.Limits(), ready)
            _commands_and_workspaces(box, base, ready)
            box.close()
        _episodes(store, tasks, arguments.episodes, arguments.at_once)


def _prepared(folder: pathlib.Path) -> tuple[trees.TreeStore, list]:
    folder.chmod(0o755)
    library, tasks = repositories.make(folder, "alpha")
    (folder / "cache" / "environments").mkdir(parents=True)
    repositories.environment(folder / "cache" / "environments" / "alpha")
    return trees.TreeStore(folder / "cache", tasks, {"alpha": library}), tasks


def _commands_and_workspaces(box: sandbox.Sandbox, base: sandbox.Base, ready: int) -> None:
    opening, closing, inside, bare = [], [], [], []
    box.open(base).close()
    for _ in range(_REPEATS):
        began = time.perf_counter()
        workspace = box.open(base)
        opening.append(time.perf_counter() - began)
        # By turns, so that other work on the machine meets both.
        began = time.perf_counter()
        workspace.run("true")
        inside.append(time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run(["bash", "-c", "true"], check=True, stdout=subprocess.PIPE)
        bare.append(time.perf_counter() - began)
        began = time.perf_counter()
        workspace.close()
        closing.append(time.perf_counter() - began)
    names = ("open", "close", "command", "bare command")
    medians = [1e3 * statistics.median(x) for x in (opening, closing, inside, bare)]
    print(f"{ready} kept ready, median ms: "
          + ", ".join(f"{name} {ms:.1f}" for name, ms in zip(names, medians, strict=True))
          + f", overhead {medians[2] - medians[3]:.1f}", flush=True)


def _episodes(store: trees.TreeStore, tasks: list, episodes: int, at_once: int) -> None:
    box = bubblewrap.Bubblewrap(sandbox.Limits())

    def episode(i: int) -> bool:
        task = tasks[i % len(tasks)]
        env = environment.CodebaseEnvironment(box, store)
        try:
            env.reset(streams.Task(str(i), task.instance_id))
            for command in _REPLIES:
                env.step(f"```bash\n{command}\n```")
            return env.outcome().solved
        finally:
            env.close()

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(episode, range(len(tasks))))
        before, began = _state(), time.perf_counter()
        solved = sum(pool.map(episode, range(episodes)))
        minutes = (time.perf_counter() - began) / 60
        after = _state()
    box.close()
    print(f"{episodes} episodes, {at_once} at once: {solved} solved, "
          f"{episodes / minutes:.0f} a minute")
    for name, value in before.items():
        print(f"{name}: {value} before, {after[name]} after")


def _state() -> dict[str, int]:
    children = pathlib.Path("/proc/self/task").glob("*/children")
    resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return {
        "processes": sum(len(file.read_text().split()) for file in children),
        "mounts": pathlib.Path("/proc/self/mountinfo").read_text().count("\n"),
        "temporary files": len(os.listdir(tempfile.gettempdir())),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "resident MB": resident * resource.getpagesize() >> 20,
    }


if __name__ == "__main__":
    main()
