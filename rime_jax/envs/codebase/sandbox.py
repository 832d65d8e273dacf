"""Where an agent's commands run: the protocol that every backend fills.

A workspace is a private copy of a tree of files for one episode. Commands in it have no network,
see none of the trainer's files and processes, and leave nothing behind when it is closed.
"""

import dataclasses
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
    status: Literal["done", "timeout", "memory", "output"]
    dropped_bytes: int
    seconds: float


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
