"""Workspaces in Apptainer (formerly Singularity), as on clusters without docker."""

import os
import pathlib
import shutil

from rime_jax.envs.codebase import hosted, sandbox

_PREFIX = "rime_jax-apptainer-"


class Apptainer:
    """See `sandbox.Sandbox`. Each command is an `apptainer exec` with namespaces of its own, which
    end with it; the files are a copy of the tree in the temporary directory.

    Written bytes are limited per file, not in all, and so is memory without a process. The image
    needs bash and git. An ordinary user needs user namespaces.
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
        # By `env` inside: Apptainer's own ways to set variables leave HOME as it is.
        self._hosted = hosted.Hosted(limits, sandbox.environment(base), own_user=True)
        self._engine = [
            program, "--silent", "exec", "--containall", "--net", "--network", "none",
            "--cleanenv", "--no-home", "--no-privs", "--pwd", sandbox.WORKDIR,
            *_user(self._place)]
        for name, target in (("testbed", sandbox.WORKDIR), ("home", sandbox.HOME),
                             ("tmp", "/tmp"), ("tmp", "/dev/shm")):
            self._engine += ["--mount", hosted.bind(self._place / name, target)]
        for mount in base.mounts:
            self._engine += ["--mount", hosted.bind(mount.source, mount.target, "readonly")]
        self._engine.append(image)

    def run(
        self, command: str, timeout_s: float | None = None, stdin: str = ""
    ) -> sandbox.Result:
        if (refused := sandbox.refused(command)) is not None:
            return refused
        return self._hosted.run(self._engine, command, stdin, timeout_s)

    def close(self) -> None:
        self._hosted.close()
        shutil.rmtree(self._place, ignore_errors=True)


def _user(place: pathlib.Path) -> list[str]:
    """Arguments that make commands an ordinary user's, to whom the files then belong."""
    if os.geteuid():
        return ["--userns"]
    # Without privileges root would still be the owner of /proc/sys.
    user = hosted.next_user()
    for path in [place, *place.rglob("*")]:
        os.chown(path, user, user, follow_symlinks=False)
    return ["--security", f"uid:{user}", "--security", f"gid:{user}"]
