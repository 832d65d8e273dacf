"""The default backend: namespaces and bubblewrap, as root or as an ordinary user."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque

from rime_jax.envs.codebase import sandbox, seccomp, warden

# What takes longer hangs in the kernel.
_SECONDS_TO_END = 20.0
_SYSTEM = ("/usr", "/etc/alternatives", "/etc/ld.so.cache")


class Bubblewrap:
    """See `sandbox.Sandbox`.

    Each workspace is a process of its own (`warden.py`); a few wait ready, so that opening one does
    not wait for a Python to start.
    """

    def __init__(self, limits: sandbox.Limits, ready: int = 2):
        """Args:
          limits: of each workspace.
          ready: processes that are kept waiting.

        Raises:
          SandboxError: bubblewrap is not there, or may not make namespaces here.
        """
        self._program = shutil.which("bwrap")
        if self._program is None:
            raise sandbox.SandboxError(
                "bubblewrap is not installed: install it (Debian, Ubuntu: apt install bubblewrap) "
                "or choose another sandbox (env.sandbox)")
        self._limits = limits
        self._ready = ready
        self._spare: deque[_Warden] = deque()
        self._lock = threading.Lock()

    def open(self, base: sandbox.Base) -> "BubblewrapWorkspace":
        tree = base.tree.resolve()
        if not tree.is_dir():
            raise sandbox.SandboxError(f"{tree} is no directory; a workspace needs its files")
        with self._lock:
            found = self._spare.popleft() if self._spare else _Warden()
            while len(self._spare) < self._ready:
                self._spare.append(_Warden())
        mounts = [(str(tree), sandbox.WORKDIR)]
        mounts += [(path, path) for path in _SYSTEM if os.path.exists(path)]
        links = []
        for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
            if os.path.islink(name):
                links.append((os.readlink(name), name))
            elif os.path.isdir(name):
                mounts.append((name, name))
        mounts += [(str(m.source.resolve()), m.target) for m in base.mounts]
        workspace = BubblewrapWorkspace(found, self._limits)
        workspace.set_up({
            "bwrap": self._program, "uid": sandbox.USER, "mounts": mounts, "links": links,
            "workdir": sandbox.WORKDIR, "environment": sandbox.environment(base),
            "limits": vars(self._limits), "seccomp": seccomp.program().decode("latin-1"),
        })
        return workspace

    def check(self) -> None:
        """Raises:
          SandboxError: no command can be run here.
        """
        with tempfile.TemporaryDirectory() as place:
            os.chmod(place, 0o755)
            workspace = self.open(sandbox.Base(pathlib.Path(place)))
            try:
                done = workspace.run("true")
            finally:
                workspace.close()
        if done.exit_code:
            self.close()
            raise sandbox.SandboxError(f"bubblewrap runs no commands: {done.output[-500:]}")

    def close(self) -> None:
        with self._lock:
            while self._spare:
                self._spare.pop().close()


class BubblewrapWorkspace:
    """See `sandbox.Workspace`."""

    def __init__(self, process: "_Warden", limits: sandbox.Limits):
        self._warden, self._limits = process, limits

    def set_up(self, request: dict) -> None:
        """Raises:
          SandboxError: the kernel or a policy of this machine refuses.
        """
        try:
            answer = self._warden.ask(request)
        except sandbox.SandboxError:
            self.close()
            raise
        if "error" in answer:
            self.close()
            raise sandbox.SandboxError(
                f"a workspace could not be set up: {answer['error']}. Where user namespaces are "
                "forbidden, choose another sandbox (env.sandbox)")

    def run(
        self, command: str, timeout_s: float | None = None, stdin: str = ""
    ) -> sandbox.Result:
        if (refused := sandbox.refused(command)) is not None:
            return refused
        limit = self._limits.timeout_s
        return sandbox.Result(**self._warden.ask({
            "argv": ["bash", "-c", command], "stdin": stdin,
            "timeout_s": limit if timeout_s is None else min(limit, timeout_s),
        }))

    def close(self) -> None:
        self._warden.close()


class _Warden:
    """The process behind a workspace, and the socket to it."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        with theirs:
            # Isolated and without site-packages: starts in a few milliseconds.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(pathlib.Path(warden.__file__)),
                 str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                cwd="/", env={})
        self._channel = ours

    def ask(self, request: dict) -> dict:
        """Raises:
          SandboxError: the process is gone.
        """
        try:
            warden.send(self._channel, request)
            answer = warden.receive(self._channel)
        except OSError as error:
            raise sandbox.SandboxError(f"the workspace is closed ({error})") from error
        if answer is None:
            raise sandbox.SandboxError("the workspace was lost: its first process died")
        return answer

    def close(self) -> None:
        # Ends what waits in `ask`, and with it the process at the other end.
        try:
            self._channel.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._channel.close()
