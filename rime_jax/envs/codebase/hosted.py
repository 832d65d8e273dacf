"""Programs of the host that carry commands for the backends without a process of their own."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence

from rime_jax.envs.codebase import sandbox, warden


class Hosted:
    """Runs one program at a time; `close`, from any thread, ends it and all later ones."""

    def __init__(self, limits: sandbox.Limits):
        self._limits = limits
        self._lock = threading.Lock()
        self._closed, self._process = False, None

    def run(
        self, argv: Sequence[str], stdin: str, timeout_s: float | None,
        environment: dict[str, str], cwd: str = "/",
    ) -> sandbox.Result:
        """Args:
          argv: the program, in a process group of its own, which is killed at the end.
          stdin: what it reads.
          timeout_s: less than the limit's.
          environment: all of its variables.
          cwd: its working directory.

        Raises:
          SandboxError: this is closed, or the program cannot be started.
        """
        limits = vars(self._limits) | {
            "timeout_s": min(self._limits.timeout_s, timeout_s or self._limits.timeout_s)}
        began = time.monotonic()
        with tempfile.TemporaryFile() as file:
            file.write(stdin.encode("utf-8", "surrogateescape"))
            file.seek(0)
            with self._lock:
                if self._closed:
                    raise sandbox.SandboxError("the workspace is closed")
                try:
                    process = self._process = subprocess.Popen(
                        list(argv), stdin=file, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                        env=environment, cwd=cwd, start_new_session=True)
                except (OSError, subprocess.SubprocessError) as error:
                    raise sandbox.SandboxError(f"{argv[0]} cannot be run: {error}") from error
            with process:
                status, output, dropped = warden.watch(
                    process, limits, None, lambda: _resident(process.pid))
                with self._lock:
                    _kill(process)
                    # Reaped under the lock: its number must not be another's when `close` kills.
                    process.wait()
                    self._process = None
        if self._closed:
            raise sandbox.SandboxError("the workspace was closed during a command")
        return sandbox.Result(output.decode("utf-8", "replace"), process.returncode, status,
                              dropped, time.monotonic() - began)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._process is not None:
                _kill(self._process)


def limited_bash(limits: sandbox.Limits) -> list[str]:
    """The start of a command line that ends with a command for bash, which then has these limits.

    Those that the shell can set: one on processes would count all of the user's.
    """
    script = (f"ulimit -v {limits.memory_bytes >> 10} -f {limits.written_bytes >> 10} "
              f"-n {limits.open_files} -c 0; echo 1000 > /proc/self/oom_score_adj; "
              'exec bash -c "$0"')
    return ["bash", "-c", script]


def copy_of(tree: pathlib.Path, prefix: str) -> pathlib.Path:
    """A temporary directory with a copy of a tree at `testbed`, and `home` and `tmp` beside it.

    Raises:
      SandboxError: there is no such tree, or no room.
    """
    place = pathlib.Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))
    try:
        shutil.copytree(tree, place / "testbed", symlinks=True)
        for name in ("home", "tmp"):
            (place / name).mkdir()
    except OSError as error:
        shutil.rmtree(place, ignore_errors=True)
        raise sandbox.SandboxError(f"{tree} cannot be copied to {place}: {error}") from error
    return place


def sweep(prefix: str) -> None:
    """Deletes the copies of processes that are no more."""
    for place in pathlib.Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        owner = place.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not pathlib.Path(f"/proc/{owner}").exists():
            shutil.rmtree(place, ignore_errors=True)


def _kill(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _resident(group: int) -> int:
    """Bytes resident in the processes of a process group."""
    pages = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getpgid(int(name)) == group:
                    with open(f"/proc/{name}/statm") as file:
                        pages += int(file.read().split()[1])
            except (OSError, IndexError):
                pass
    return pages * os.sysconf("SC_PAGESIZE")
