"""No sandbox: a subprocess in a copy of the tree. For machines and commands that are trusted."""

import logging
import shutil

from rime_jax.envs.codebase import hosted, sandbox

_PREFIX = "rime_jax-unsafe-"
_log = logging.getLogger(__name__)


class Unsafe:
    """See `sandbox.Sandbox`.

    A command reads whatever its user can read, the hidden tests and this process's files included,
    has the network, and what leaves its process group outlives it. Paths that a base mounts are
    not there: mounted files are reached by their own places, `sandbox.WORKDIR` by the directory
    that a command starts in. So tasks whose environment is mounted (`trees.py`) cannot be played.
    """

    def __init__(self, limits: sandbox.Limits):
        _log.warning("env.sandbox = unsafe: commands that a model writes run as this user, with "
                     "all its files and the network; use it on a machine that holds nothing else")
        hosted.sweep(_PREFIX)
        self._limits = limits

    def open(self, base: sandbox.Base) -> "UnsafeWorkspace":
        if base.mounts:
            targets = ", ".join(mount.target for mount in base.mounts)
            raise sandbox.SandboxError(
                f"the unsafe sandbox cannot show {targets} to a command; choose bubblewrap, "
                "docker, podman or apptainer (env.sandbox)")
        return UnsafeWorkspace(base, self._limits)

    def close(self) -> None:
        """Keeps nothing."""


class UnsafeWorkspace:
    """See `sandbox.Workspace`."""

    def __init__(self, base: sandbox.Base, limits: sandbox.Limits):
        self._place = hosted.copy_of(base.tree, _PREFIX)
        self._hosted = hosted.Hosted(limits, sandbox.environment(base) | {
            "HOME": str(self._place / "home"), "TMPDIR": str(self._place / "tmp")})

    def run(
        self, command: str, timeout_s: float | None = None, stdin: str = ""
    ) -> sandbox.Result:
        if (refused := sandbox.refused(command)) is not None:
            return refused
        return self._hosted.run([], command, stdin, timeout_s, str(self._place / "testbed"))

    def close(self) -> None:
        self._hosted.close()
        shutil.rmtree(self._place, ignore_errors=True)
