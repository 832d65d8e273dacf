"""Workspaces in containers of docker or podman.

The arguments and answers are tested against a stand-in for the program; no real engine was at hand.
"""

import os
import pathlib
import shutil
import subprocess

from rime_jax.envs.codebase import hosted, sandbox

_LABEL = "rime_jax.owner"
_TREE = "/opt/tree"
_USER = "1000:1000"
_SECONDS_TO_START = 120
# Exit codes of the engines' own failures (125) and of a container that is gone.
_ENGINE_FAILED = 125


class Containers:
    """See `sandbox.Sandbox`. A container for each workspace, an `exec` for each command.

    The image needs bash, git and, for environments made on this host (`trees.py`), a C library no
    older than the host's and nothing at the places of this Python.
    """

    def __init__(self, engine: str, limits: sandbox.Limits, image: str = "python:3.11"):
        """Args:
          engine: `docker` or `podman`.
          limits: of each workspace.
          image: for bases without one.

        Raises:
          SandboxError: the engine is not there or does not answer.
        """
        self._engine = shutil.which(engine)
        if self._engine is None:
            raise sandbox.SandboxError(
                f"{engine} is not installed: install it or choose another sandbox (env.sandbox)")
        self._limits, self._image = limits, image
        self._sweep()

    def open(self, base: sandbox.Base) -> "ContainerWorkspace":
        identity = _call(self._engine, *start_arguments(
            base, self._limits, base.image or self._image, owner())).strip()
        workspace = ContainerWorkspace(self._engine, identity, base, self._limits)
        try:
            # Not its owner: that of the host is nobody in there.
            copied = workspace.run(f"cp -r --preserve=mode,links,timestamps {_TREE}/. .")
        except sandbox.SandboxError:
            workspace.close()
            raise
        if copied.exit_code:
            workspace.close()
            raise sandbox.SandboxError(f"the tree cannot be copied: {copied.output[-500:]}")
        return workspace

    def close(self) -> None:
        """Keeps nothing."""

    def _sweep(self) -> None:
        """Removes the containers of trainers of this machine that are no more."""
        listed = _call(self._engine, "ps", "--all", "--filter", f"label={_LABEL}", "--format",
                       f'{{{{.ID}}}} {{{{.Label "{_LABEL}"}}}}')
        for line in listed.splitlines():
            identity, _, label = line.partition(" ")
            if label and not alive(label.strip()):
                _call(self._engine, "rm", "--force", "--volumes", identity)


class ContainerWorkspace:
    """See `sandbox.Workspace`."""

    def __init__(self, engine: str, identity: str, base: sandbox.Base, limits: sandbox.Limits):
        self._engine, self._identity = engine, identity
        self._environment = sandbox.environment(base)
        self._hosted = hosted.Hosted(limits)
        self._open = True

    def run(
        self, command: str, timeout_s: float | None = None, stdin: str = ""
    ) -> sandbox.Result:
        if (refused := sandbox.refused(command)) is not None:
            return refused
        result = self._hosted.run(
            [self._engine, *exec_arguments(self._identity, self._environment, command)], stdin,
            timeout_s, sandbox.host_environment())
        # All but process 1, which waits; the client that was killed has left its command running.
        left = subprocess.run(
            [self._engine, "exec", "--user", _USER, self._identity, "bash", "-c", "kill -9 -1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.exit_code == _ENGINE_FAILED or left.returncode == _ENGINE_FAILED:
            raise sandbox.SandboxError(
                f"the container is lost: {(result.output + left.stdout)[-500:]}")
        return result

    def close(self) -> None:
        self._hosted.close()
        if self._open:
            self._open = False
            _call(self._engine, "rm", "--force", "--volumes", self._identity)


def start_arguments(
    base: sandbox.Base, limits: sandbox.Limits, image: str, label: str
) -> list[str]:
    """`run …` for a container that waits for commands."""
    size = f"size={limits.written_bytes},nr_inodes={limits.written_files}"
    arguments = [
        "run", "--detach", "--rm", "--label", f"{_LABEL}={label}", "--network", "none",
        "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", _USER,
        "--pids-limit", str(limits.processes), "--memory", str(limits.memory_bytes),
        "--memory-swap", str(limits.memory_bytes),
        "--ulimit", f"nofile={limits.open_files}:{limits.open_files}",
        "--ulimit", f"fsize={limits.written_bytes}:{limits.written_bytes}", "--ulimit", "core=0",
        "--hostname", "sandbox", "--ipc", "private", "--workdir", sandbox.WORKDIR]
    for place in (sandbox.WORKDIR, sandbox.HOME, "/tmp"):
        arguments += ["--tmpfs", f"{place}:rw,exec,mode=1777,{size}"]
    for source, target in ((base.tree, _TREE), *((m.source, m.target) for m in base.mounts)):
        arguments += ["--mount", f"type=bind,source={source.resolve()},target={target},readonly"]
    return [*arguments, "--entrypoint", "sleep", image, "infinity"]


def exec_arguments(identity: str, environment: dict[str, str], command: str) -> list[str]:
    """`exec …` for one command."""
    arguments = ["exec", "--interactive", "--user", _USER, "--workdir", sandbox.WORKDIR]
    for name, value in environment.items():
        arguments += ["--env", f"{name}={value}"]
    return [*arguments, identity, "bash", "-c", command]


def owner() -> str:
    """This process, such that no later one is taken for it."""
    return f"{os.uname().nodename}:{os.getpid()}:{_started(os.getpid())}"


def alive(label: str) -> bool:
    """Whether the process that a label names may still run; those of other machines may."""
    node, _, rest = label.rpartition(":")[0].rpartition(":")
    began = label.rpartition(":")[2]
    return node != os.uname().nodename or not rest.isdigit() or _started(int(rest)) == began


def _started(process: int) -> str:
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # Its name, in brackets, may hold spaces.
    return stat.rpartition(")")[2].split()[19]


def _call(engine: str, *arguments: str) -> str:
    """Raises:
      SandboxError: the engine failed; with what it said.
    """
    try:
        done = subprocess.run(
            [engine, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_SECONDS_TO_START)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise sandbox.SandboxError(f"{engine} {arguments[0]}: {error}") from error
    if done.returncode:
        raise sandbox.SandboxError(
            f"{engine} {arguments[0]} failed: {done.stderr[-500:].strip()}. Is its service "
            "running, and may this user use it?")
    return done.stdout
