"""Where an agent's commands run: the protocol that every backend fills.

A workspace is a private copy of a tree of files for one episode. Commands in it have no network,
see none of the trainer's files and processes, and leave nothing behind when it is closed.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Literal, Protocol

WORKDIR = "/testbed"
HOME = "/home"
# Under a trainer that is root the files of a tree must belong to this user, who has no others (of a
# range that systemd, too, uses so), or the agent could not change them.
USER = 61184


class SandboxError(RuntimeError):
    """The sandbox itself failed (never the command in it); the message names the remedy."""


@dataclasses.dataclass(frozen=True)
class Mount:
    """A file or directory of the host that workspaces see read-only at `target`."""

    source: pathlib.Path
    target: str


@dataclasses.dataclass(frozen=True)
class Base:
    """What a workspace starts from; shared by many, changed by none.

    Attributes:
      tree: the directory that appears, writable, at `WORKDIR`.
      mounts: what else is there, read-only.
      environment: variables of every command.
      image: for backends of containers: the image that commands run in.
    """

    tree: pathlib.Path
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    image: str = ""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of one workspace; what passes one is killed.

    Attributes:
      timeout_s: of one command.
      memory_bytes: address space of one process, and resident memory of all together.
      processes: alive at once.
      written_bytes, written_files: in all writable places of the workspace together.
      open_files: of one process.
      output_bytes: of a command's output that are kept, half from each end.
      printed_bytes: of output, kept or not.
    """

    timeout_s: float = 120.0
    memory_bytes: int = 4 << 30
    processes: int = 256
    written_bytes: int = 512 << 20
    written_files: int = 100_000
    open_files: int = 1024
    output_bytes: int = 200_000
    printed_bytes: int = 100 << 20


# How a command ended: by itself, or for having passed a limit.
Ending = Literal["done", "timeout", "memory", "output"]


@dataclasses.dataclass(frozen=True)
class Result:
    """What one command did.

    Attributes:
      output: of both streams as they came; without its middle where it was long.
      exit_code: of the shell; negative: the signal that killed it.
      status: `done`, or the limit that the command was killed for.
      dropped_bytes: of output that was not kept.
      seconds: wall-clock time.
    """

    output: str
    exit_code: int
    status: Ending
    dropped_bytes: int
    seconds: float


# The kernel's limit on one argument of a program is 128 KiB.
_COMMAND_BYTES = 120_000


def refused(command: str) -> Result | None:
    """The answer to a command that no shell can be given; None for others."""
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        why = "holds half of a surrogate pair"
    else:
        if "\0" not in command and size <= _COMMAND_BYTES:
            return None
        why = ("holds a NUL byte" if "\0" in command else
               f"is longer than {_COMMAND_BYTES} bytes; write a long file in several parts")
    return Result(f"bash: the command was not run: it {why}\n", 126, "done", 0, 0.0)


def environment(base: Base) -> dict[str, str]:
    """All variables of a command."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "USER": "agent",
        "LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "PYTHONDONTWRITEBYTECODE": "1",
        # The files belong to nobody in there, at which git would stop.
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
    } | dict(base.environment)


def host_environment() -> dict[str, str]:
    """The variables that programs of the host need which start workspaces; no secrets."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST")
            if name in os.environ}


class Workspace(Protocol):
    """One episode's files. Not for several threads at once."""

    def run(
        self, command: str, timeout_s: float | None = None, stdin: str = ""
    ) -> Result:
        """Runs a command in a fresh bash; all that it started is dead when this returns.

        Args:
          command: for `bash -c`.
          timeout_s: less than the limit's.
          stdin: what it can read.

        Raises:
          SandboxError: the workspace is closed or lost.
        """

    def close(self) -> None:
        """Kills and deletes everything; may be called at any time, from any thread, repeatedly."""


class Sandbox(Protocol):
    """Opens workspaces; for several threads at once."""

    def open(self, base: Base) -> Workspace:
        """Raises:
          SandboxError: it cannot be opened.
        """

    def close(self) -> None:
        """Closes what is kept ready."""
