"""Workspaces in containers of docker or podman."""

import logging
import os
import shutil
import subprocess
import tempfile

from rime_jax.envs.codebase import hosted, sandbox

_log = logging.getLogger(__name__)
_LABEL = "rime_jax.owner"
_TREE = "/opt/tree"
_SECONDS_TO_START = 120
# Make a mount the user's own: with a mode alone docker gives it that of the image's folder.
_OWNED = {"docker": "uid={user},gid={user}", "podman": "U"}
# Process 1 reaps what others leave behind, and waits.
_WAIT = "while :; do sleep infinity & wait; done"
# All but process 1, and returns when they are gone: process 1, its `sleep` and this one are left.
_KILL = ("kill -9 -1; for i in {1..500}; do set -- /proc/[0-9]*; [ $# -le 3 ] && exit 0; "
         "sleep .01; done; echo 'processes cannot be killed' >&2; exit 1")
# Processes and threads of process 1, of the engine and of `_KILL`, beside those of a command.
_OWN_PROCESSES = 32


class Containers:
    """See `sandbox.Sandbox`. A container for each workspace, an `exec` for each command.

    The image needs bash, git and, for environments made on this host (`trees.py`), a C library no
    older than the host's and nothing at the places of this Python. Written bytes are limited in
    each writable place, the number of files by the memory that they take. Where all processes
    together pass the limit of memory, the kernel kills one of them: no status tells so.
    An engine that is not root's sets no limits on all together without control groups of version 2.
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
        self._limits, self._image, self._owned = limits, image, _OWNED[engine]
        self._sweep()

    def open(self, base: sandbox.Base) -> "ContainerWorkspace":
        user = hosted.next_user()
        identity = _call(self._engine, *start_arguments(
            base, self._limits, base.image or self._image, owner(), user,
            self._owned)).strip()
        workspace = ContainerWorkspace(self._engine, identity, user, base, self._limits)
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
        listed = _call(self._engine, "ps", "--all", "--quiet", "--filter", f"label={_LABEL}")
        for identity in listed.split():
            try:
                label = _call(self._engine, "inspect", "--format",
                              f'{{{{index .Config.Labels "{_LABEL}"}}}}', identity)
                if not alive(label.strip()):
                    _call(self._engine, "rm", "--force", "--volumes", identity)
            except sandbox.SandboxError as error:
                # Mostly because another trainer has just removed it.
                _log.warning("a container of a former run may be left: %s", error)


class ContainerWorkspace:
    """See `sandbox.Workspace`."""

    def __init__(self, engine: str, identity: str, user: int, base: sandbox.Base,
                 limits: sandbox.Limits):
        self._engine, self._identity, self._user = engine, identity, f"{user}:{user}"
        self._hosted = hosted.Hosted(limits, sandbox.environment(base), own_user=True)
        self._open = True

    def run(
        self, command: str, timeout_s: float | None = None, stdin: str = ""
    ) -> sandbox.Result:
        if (refused := sandbox.refused(command)) is not None:
            return refused
        try:
            return self._hosted.run(
                [self._engine, "exec", "--interactive", "--user", self._user,
                 "--workdir", sandbox.WORKDIR, self._identity], command, stdin, timeout_s)
        finally:
            if self._open:
                self._kill_all()

    def _kill_all(self) -> None:
        """A client that is killed has left its command running.

        Raises:
          SandboxError: the container is lost.
        """
        try:
            _call(self._engine, "exec", "--user", self._user, self._identity, "bash", "-c", _KILL)
        except sandbox.SandboxError as error:
            raise sandbox.SandboxError(f"the container is lost: {error}") from error

    def close(self) -> None:
        was_open, self._open = self._open, False
        self._hosted.close()
        if was_open:
            _call(self._engine, "rm", "--force", "--volumes", self._identity)


def start_arguments(
    base: sandbox.Base, limits: sandbox.Limits, image: str, label: str, user: int,
    owned: str,
) -> list[str]:
    """`run …` for a container that waits for commands.

    Args:
      base, limits, image: of the workspace.
      label: tells whose it is (`owner`).
      user: number of the one that commands run as.
      owned: option of a tmpfs that makes it his.
    """
    processes = limits.processes + _OWN_PROCESSES
    arguments = [
        "run", "--detach", "--rm", "--label", f"{_LABEL}={label}", "--network", "none",
        "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user",
        f"{user}:{user}", "--pids-limit", str(processes), "--memory", str(limits.memory_bytes),
        "--memory-swap", str(limits.memory_bytes), "--ulimit", f"nproc={processes}:{processes}",
        "--ulimit", f"nofile={limits.open_files}:{limits.open_files}",
        "--ulimit", f"fsize={limits.written_bytes}:{limits.written_bytes}", "--ulimit", "core=0",
        "--hostname", "sandbox", "--ipc", "private", "--workdir", sandbox.WORKDIR,
        # Process 1 hears no other signal than the last one.
        "--stop-timeout", "0"]
    writable = f"rw,exec,mode=755,size={limits.written_bytes},{owned.format(user=user)}"
    for place in (sandbox.WORKDIR, sandbox.HOME, "/tmp"):
        arguments += ["--tmpfs", f"{place}:{writable}"]
    for source, target in ((base.tree, _TREE), *((m.source, m.target) for m in base.mounts)):
        arguments += ["--mount", hosted.bind(source, target, "readonly")]
    return [*arguments, "--entrypoint", "bash", image, "-c", _WAIT]


def owner() -> str:
    """This process, such that no later one is taken for it."""
    return f"{os.uname().nodename}:{os.getpid()}:{_started(os.getpid())}"


def alive(label: str) -> bool:
    """Whether the process that a label names may still run; those of other machines may."""
    node, _, rest = label.rpartition(":")[0].rpartition(":")
    began = label.rpartition(":")[2]
    return node != os.uname().nodename or not rest.isdigit() or _started(int(rest)) == began


def _started(process: int) -> str:
    fields = hosted.stat_of(process)
    return fields[19] if fields else ""


def _call(engine: str, *arguments: str) -> str:
    """Raises:
      SandboxError: the engine failed; with what it said.
    """
    try:
        done = subprocess.run(
            [engine, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            # podman's monitor leaves a file `oom` where it was started.
            cwd=tempfile.gettempdir(), timeout=_SECONDS_TO_START)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise sandbox.SandboxError(f"{engine} {arguments[0]}: {error}") from error
    if done.returncode:
        raise sandbox.SandboxError(
            f"{engine} {arguments[0]} failed (is its service running, and may this user use it?): "
            f"{done.stderr[-500:].strip()}")
    return done.stdout
