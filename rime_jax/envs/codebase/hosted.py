"""Programs of the host that carry commands for the backends without a process of their own."""

import collections
import csv
import io
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import cast

from rime_jax.envs.codebase import sandbox, warden

# Printed before a command, so that what an engine says of itself is not taken for its output.
_STARTED = "\x1erime_jax: started\x1e"
# Users that exist nowhere else, one for each workspace at a time.
_users = itertools.cycle(range(sandbox.USER, 65520))
# Of /proc/PID/stat, behind the name.
_PARENT, _GROUP, _RESIDENT = 1, 2, 21


class Hosted:
    """Runs one command at a time; `close`, from any thread, ends it and all later ones."""

    def __init__(
        self, limits: sandbox.Limits, variables: dict[str, str], own_user: bool = False
    ):
        """Args:
          limits: of each command; the shell sets those that it can.
          variables: all of the environment of commands.
          own_user: commands run as a user without other processes, so that they can be counted.
        """
        self._limits = limits
        self._bash = _limited_bash(limits, variables, own_user)
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen | None = None

    def run(
        self, engine: Sequence[str], command: str, stdin: str, timeout_s: float | None,
        cwd: str = "/",
    ) -> sandbox.Result:
        """Args:
          engine: a program and its arguments, before those that it is to run inside; may be none.
            What runs has a process group of its own, which is killed at the end.
          command: for bash.
          stdin: what it reads.
          timeout_s: less than the limit's.
          cwd: the engine's working directory.

        Raises:
          SandboxError: this is closed, or the engine does not run the command.
        """
        argv = [*engine, *self._bash, command]
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
                        argv, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                        env=sandbox.host_environment(), cwd=cwd, start_new_session=True)
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
        said, started, text = output.decode("utf-8", "replace").partition(_STARTED)
        if not started:
            raise sandbox.SandboxError(
                f"{argv[0]} did not run a command (status {status}, exit code "
                f"{process.returncode}): {said[-500:].strip()}")
        return sandbox.Result(text, process.returncode, cast(sandbox.Ending, status), dropped,
                              time.monotonic() - began)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._process is not None:
                _kill(self._process)


def _limited_bash(
    limits: sandbox.Limits, variables: dict[str, str], own_user: bool
) -> list[str]:
    """The start of a command line that ends with a command for bash."""
    processes = f"-u {limits.processes}" if own_user else ""
    script = (f"echo 1000 > /proc/self/oom_score_adj; printf '{_STARTED}'; "
              # One stream: docker carries two without their order.
              "exec 2>&1; "
              f"ulimit -v {limits.memory_bytes >> 10} -f {limits.written_bytes >> 10} "
              f"-n {limits.open_files} -c 0 {processes}; "
              'exec bash -c "$0"')
    return ["env", "-i", *(f"{name}={value}" for name, value in variables.items()),
            "bash", "-c", script]


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


def next_user() -> int:
    """For one workspace, so that its processes can be counted."""
    return next(_users)


def bind(source: pathlib.Path, target: str, *options: str) -> str:
    """For `--mount` of docker, podman and Apptainer, with paths of any name."""
    fields = ["type=bind", f"source={source.resolve()}", f"target={target}", *options]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


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


def _resident(first: int) -> int:
    """Bytes resident in a process, in those of its group, and in the descendants of all these."""
    pages, children, found = {}, collections.defaultdict(list), [first]
    for name in os.listdir("/proc"):
        fields = stat_of(int(name)) if name.isdigit() else []
        if fields:
            pages[int(name)] = int(fields[_RESIDENT])
            children[int(fields[_PARENT])].append(int(name))
            if int(fields[_GROUP]) == first:
                found.append(int(name))
    counted = set()
    while found:
        process = found.pop()
        if process not in counted:
            counted.add(process)
            found += children[process]
    return sum(pages.get(process, 0) for process in counted) * os.sysconf("SC_PAGESIZE")


def stat_of(process: int) -> list[str]:
    """The fields of /proc/PID/stat from its state on; none if there is no such process."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    # Its name, in brackets, may hold spaces.
    return text.rpartition(")")[2].split()
