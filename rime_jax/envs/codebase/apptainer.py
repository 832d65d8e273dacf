"""Workspaces in Apptainer (formerly Singularity), as on clusters without docker.

The arguments are tested against a stand-in for the program; no real Apptainer was at hand.
"""

import shutil

from rime_jax.envs.codebase import hosted, sandbox

_PREFIX = "rime_jax-apptainer-"


class Apptainer:
    """See `sandbox.Sandbox`. Each command is an `apptainer exec` with namespaces of its own, which
    end with it; the files are a copy of the tree in the temporary directory.

    Written bytes are limited per file, not in all, and memory per process and in all.
    """

    def __init__(self, limits: sandbox.Limits, image: str = "docker://python:3.11"):
        """Args:
          limits: of each workspace.
          image: for bases without one: a file, or an address that Apptainer knows.

        Raises:
          SandboxError: Apptainer is not there.
        """
        self._program = shutil.which("apptainer") or shutil.which("singularity")
        if self._program is None:
            raise sandbox.SandboxError(
                "apptainer is not installed: install it or choose another sandbox (env.sandbox)")
        hosted.sweep(_PREFIX)
        self._limits, self._image = limits, image

    def open(self, base: sandbox.Base) -> "ApptainerWorkspace":
        return ApptainerWorkspace(self._program, base.image or self._image, base, self._limits)

    def close(self) -> None:
        """Keeps nothing."""


class ApptainerWorkspace:
    """See `sandbox.Workspace`."""

    def __init__(self, program: str, image: str, base: sandbox.Base, limits: sandbox.Limits):
        self._place = hosted.copy_of(base.tree, _PREFIX)
        self._hosted = hosted.Hosted(limits)
        self._argv = [
            program, "exec", "--containall", "--net", "--network", "none", "--cleanenv",
            "--no-home", "--no-privs", "--pwd", sandbox.WORKDIR,
            "--bind", f"{self._place}/testbed:{sandbox.WORKDIR}",
            "--bind", f"{self._place}/tmp:/tmp", "--bind", f"{self._place}/home:{sandbox.HOME}"]
        for mount in base.mounts:
            self._argv += ["--bind", f"{mount.source.resolve()}:{mount.target}:ro"]
        for name, value in sandbox.environment(base).items():
            self._argv += ["--env", f"{name}={value}"]
        self._argv += [image, *hosted.limited_bash(limits)]

    def run(
        self, command: str, timeout_s: float | None = None, stdin: str = ""
    ) -> sandbox.Result:
        if (refused := sandbox.refused(command)) is not None:
            return refused
        result = self._hosted.run(
            [*self._argv, command], stdin, timeout_s, sandbox.host_environment())
        # Apptainer's own failures, before there is a command.
        if result.exit_code == 255 and "FATAL:" in result.output:
            raise sandbox.SandboxError(f"apptainer failed: {result.output[-500:]}")
        return result

    def close(self) -> None:
        self._hosted.close()
        shutil.rmtree(self._place, ignore_errors=True)
