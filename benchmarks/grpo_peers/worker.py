"""A program that computes updates on demand, in a process and an interpreter of its own.

It prints one line of JSON when it is ready ({"versions": …}), and after each line that it reads
carries out one update and prints its {"seconds": …, "cpu_seconds": …, "loss": …}.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent.parent


class Worker:
    """The driver's side."""

    def __init__(self, python: str, module: str, folder: pathlib.Path, log: pathlib.Path):
        """Starts it and waits until it is ready.

        Args:
          python: its interpreter.
          module: one whose main calls `serve`.
          folder: of the task.
          log: receives what else it has to say.

        Raises:
          RuntimeError: it ended before it was ready; says how its log ends.
        """
        self._module, self._log = module, log
        self._process = subprocess.Popen(
            [python, "-m", module, str(folder)], cwd=ROOT, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log.open("w"),
            env=os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""})
        self.versions: dict[str, str] = self._answer()["versions"]

    def update(self) -> dict[str, float]:
        """`seconds`, `cpu_seconds` of all threads and `loss` (before it) of one more update."""
        self._process.stdin.write("update\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise RuntimeError(f"{self._module} ended with status {self._process.returncode}: "
                               + self._log.read_text()[-3000:])
        return json.loads(line)


def serve(make_update: Callable[[pathlib.Path], Callable[[], float]], *packages: str) -> None:
    """The program's side: its main.

    Args:
      make_update: from the folder of a task to a function that carries out one update and returns
        the loss before it once all is done.
      packages: whose versions are told.
    """
    # Libraries print; only answers may reach the driver.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content: Mapping[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    update = make_update(pathlib.Path(sys.argv[1]))
    answer({"versions": {name: metadata.version(name) for name in packages}})
    for _ in sys.stdin:
        began, cpu_began = time.perf_counter(), time.process_time()
        loss = update()
        answer({"seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu_began, "loss": loss})
