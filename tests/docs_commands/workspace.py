"""A copy of the checkout in which the commands of the pages are run, one shell for each."""

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator

import pytest

from rime_jax.envs.alchemy import chemistry
from tests.docs_commands import pages
from tests.docs_commands.table import Row
from tests.envs.codebase import repositories

_FOLDERS = ("benchmarks", "docs", "examples", "experiments", "launch", "rime_jax", "tests")
_FILES = ("setup.py", "pyproject.toml", "constraints.txt", "mkdocs.yml", "README.md",
          "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
_LIMIT_S = 900


class Workspace:
    """Runs each row once; `path` is the copy, with its environment in .venv."""

    def __init__(self, folder: pathlib.Path, rows: dict[str, Row], set_ups: dict[str, tuple]):
        self.path = folder / "checkout"
        self._rows, self._set_ups = rows, set_ups
        self._outcomes: dict[str, BaseException | None] = {}
        self._ports: dict[str, str] = {}
        for name in _FOLDERS:
            shutil.copytree(pages.ROOT / name, self.path / name,
                            ignore=shutil.ignore_patterns("__pycache__"))
        for name in _FILES:
            shutil.copy(pages.ROOT / name, self.path)
        (folder / "home").mkdir()
        self._environment = {
            "PATH": os.pathsep.join([str(self.path / ".venv/bin"),
                                     str(pathlib.Path(sys.executable).parent),
                                     os.environ["PATH"]]),
            "HOME": str(folder / "home"), "JAX_PLATFORMS": "cpu",
            # As in conftest.py: programs that compute little are not worth optimising.
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
            # Even the small ones are: most commands compile those of the command before them.
            "JAX_COMPILATION_CACHE_DIR": str(folder / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONUNBUFFERED": "1",
        }
        self._make_environment()

    def run(self, command: str) -> None:
        """Runs what the row of a command says, after the rows that it builds on; once."""
        if command not in self._outcomes:
            self._outcomes[command] = None
            try:
                self._run(self._rows[command])
            except BaseException as error:
                self._outcomes[command] = error
                raise
        elif (error := self._outcomes[command]) is not None:
            raise error

    def _run(self, row: Row) -> None:
        if row.left_out:
            pytest.skip(row.left_out)
        for need in row.needs:
            self._need(need)
        for earlier in row.after:
            self.run(earlier)
        began = time.time()
        with contextlib.ExitStack() as stack:
            if row.beside:
                stack.enter_context(self._started(self._rows[row.beside]))
            if row.serves:
                stack.enter_context(self._started(row))
            else:
                status, told = self._finish(row)
                assert status in row.statuses, f"{self._line(row)}\nended with {status}\n{told}"
        for name in row.leaves:
            assert (self.path / name).exists(), f"{self._line(row)}\nleft no {name}"
            assert (self.path / name).stat().st_mtime >= began - 1, f"{name} is old"

    def _line(self, row: Row) -> str:
        line = f"{row.command} {row.add}".strip()
        for given, meant in row.swap.items():
            assert given in row.command, f"{row.command} has no {given}"
            line = line.replace(given, meant)
        for name in row.ports:
            line = line.replace(f"{{{name}}}", self._ports.setdefault(name, _free_port()))
        return line

    def _start(self, row: Row, log: pathlib.Path) -> subprocess.Popen:
        script = "\n".join([*self._set_ups.get(row.command, ()), self._line(row)])
        with log.open("w") as file:
            return subprocess.Popen(
                ["bash", "-ec", script], cwd=self.path, env=self._environment, stdout=file,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)

    def _finish(self, row: Row) -> tuple[int, str]:
        log = self.path.parent / "log"
        process = self._start(row, log)
        try:
            status = process.wait(_LIMIT_S)
        finally:
            _end(process, signal.SIGKILL)
        return status, log.read_text()[-6000:]

    @contextlib.contextmanager
    def _started(self, row: Row) -> Iterator[None]:
        """The command of a row in the background: a server until the end, others to theirs."""
        log = self.path.parent / "log_beside"
        process = self._start(row, log)
        try:
            while row.serves and row.serves not in log.read_text():
                assert process.poll() is None, f"{self._line(row)} ended\n{log.read_text()[-6000:]}"
                time.sleep(0.1)
            yield
            if row.serves:
                _end(process, signal.SIGTERM)
            status = process.wait(60)
            assert row.serves or status in row.statuses, log.read_text()[-6000:]
        finally:
            _end(process, signal.SIGKILL)

    def _need(self, name: str) -> None:
        if name == "repositories":
            repositories.box().close()
            if not (self.path / "tasks.jsonl").exists():
                _write_repositories(self.path)
        elif name == "episodes":
            _write_episodes(self.path)
        elif importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")

    def _make_environment(self) -> None:
        """As launch/test.sh makes it where RIME_NETWORK=1, else one that shows this Python's."""
        if os.environ.get("RIME_NETWORK") == "1":
            subprocess.run(["launch/install.sh", "test"], cwd=self.path, check=True,
                           env=self._environment)
            return
        venv = self.path / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "shown.pth").write_text(
            f"{self.path}\nimport site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        # The stamp of launch/_setup.sh, so that its scripts take the environment for complete.
        subprocess.run(
            ["bash", "-ec", f'root="{self.path}"; . launch/_setup.sh; touch "$venv/$owner_mark"; '
             'stamp_of >"$venv/stamp.parity"'], cwd=self.path, check=True, env=self._environment)


def _write_repositories(folder: pathlib.Path) -> None:
    """Task files of four made-up repositories, and a cache in which they are prepared."""
    rows, libraries = [], []
    (folder / "cache" / "environments").mkdir(parents=True)
    for name in ("one", "two", "three", "four"):
        library, tasks = repositories.make(folder / "repositories", name)
        repositories.environment(folder / "cache" / "environments" / name)
        libraries.append(vars(library))
        rows += [{"instance_id": t.instance_id, "repo": t.repository, "patch": t.setup_patch,
                  "FAIL_TO_PASS": list(t.fail_to_pass), "PASS_TO_PASS": list(t.pass_to_pass),
                  "problem_statement": t.statement} for t in tasks[:4]]
    for name, some in (("tasks.jsonl", rows), ("benchmark.jsonl", rows[2:6])):
        (folder / name).write_text("\n".join(map(json.dumps, some)))
    (folder / "libraries.json").write_text(json.dumps(libraries))


def _write_episodes(folder: pathlib.Path) -> None:
    """Four recorded episodes of the benchmark's ten trials, and a split that evaluates two."""
    made = chemistry.Chemistry((0, 1, 2), (1, 1, 1), (1, 1, 1), 108).to_json()
    with (folder / "episodes.jsonl").open("w") as file:
        for i in range(4):
            trials = [[[0, 1, 2], [t % 6] * 12] for t in range(10)]
            file.write(json.dumps({"episode": i, "chem": made, "trials": trials,
                                   "oracle": [30] * 10}) + "\n")
    (folder / "split.json").write_text(json.dumps(
        {"order": [0, 1], "keep": {str(made["n_edges"]): 2}, "eval": [2, 3]}))


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _end(process: subprocess.Popen, sign: int) -> None:
    """Signals a command and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sign)
