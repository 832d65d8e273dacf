"""A run of several processes: how they find each other, and how they keep together.

    python -m rime_jax.train --config=... --coordinator auto              TPU pod, SLURM, Kubernetes
    python -m rime_jax.train --config=... --coordinator host0:8476 --processes 2 --process 0
    python -m rime_jax.train --config=... --coordinator host0:8476 --processes 2 --process 1

Without `--coordinator` a program is alone. Every process runs the same command (but for its number)
with the same code and the same run directory, on a file system that all of them see.

What the hosts tell each other goes through jax's coordination service and not over the devices: a
collective may time out while another process still plays, and arrays would need equal shapes. The
service trusts whoever can reach its port, and so does this module.
"""

import argparse
import asyncio
import contextlib
import hashlib
import logging
import pathlib
import pickle
import signal
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import jax
import ml_collections

from rime_jax import config as config_lib
from rime_jax import errors

_log = logging.getLogger(__name__)

# Names in the coordination service.
_FAILED, _REFUSED, _STOP = "rime/failed", "rime/refused", "rime/stop"

# Between two looks at whether another process has failed or was told to stop.
_POLL_S = 1.0

# For a file of one host to be seen by the others: network file systems cache directories.
_SHARED_S = 60.0

# That a process waits for the others before it exits.
_SHUTDOWN_S = 60


class ProcessError(config_lib.ConfigError):
    """Processes that do not fit together; the message says which one is at fault."""


class ProcessLost(errors.TransientError):
    """Another process is not there, or has failed; the message says which one, and why."""


class Stopped(Exception):
    """One of the processes was told to stop; raised in all of them at the same point."""


class Processes:
    """The processes of a run, as one of them sees them.

    All must call the methods that speak to the others, in the same order.

    Attributes:
      index: number of this process.
      count: of all processes.
    """

    def __init__(self, index: int = 0, count: int = 1, client: Any = None):
        """Args:
          client: of jax's coordination service; None for a process that is alone.
        """
        self.index, self.count = index, count
        self._client = client
        self._gathered = self._collected = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.index == 0

    def own(self, n: int) -> range:
        """Of n things that are dealt out in turn, the numbers of those that fall to this one."""
        return range(self.index, n, self.count)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in each of them; for small ones. Waits for the last.

        Raises:
          ProcessLost: another process has failed; ProcessError: what the user gave it did not fit.
        """
        if self.count == 1:
            return [value]
        n, self._gathered = self._gathered, self._gathered + 1
        self._set(f"rime/gather/{n}/{self.index}", value)
        values = [self._get(f"rime/gather/{n}/{i}") for i in range(self.count)]
        if n > 0:
            # Who has sent its n-th value has read all of the one before.
            self._client.key_value_delete(f"rime/gather/{n - 1}/{self.index}")
        return values

    def collect(self, value: Any) -> list[Any] | None:
        """The values of all processes in the first one, which waits for them; None in the others.

        Raises:
          ProcessLost: another process has failed; ProcessError: what the user gave it did not fit.
        """
        if self.count == 1:
            return [value]
        n, self._collected = self._collected, self._collected + 1
        if not self.first:
            self._set(f"rime/collect/{n}/{self.index}", value)
            return None
        others = [f"rime/collect/{n}/{i}" for i in range(1, self.count)]
        values = [value, *map(self._get, others)]
        for key in others:
            self._client.key_value_delete(key)
        return values

    def fail(self, error: BaseException) -> None:
        """Tells the others that this process ends, and why."""
        if self.count > 1:
            if isinstance(error, errors.UserError):
                self._client.key_value_set(_REFUSED, "yes", allow_overwrite=True)
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was faster
                self._client.key_value_set(
                    _FAILED, f"process {self.index} ended: {error or type(error).__name__}")

    def ask_to_stop(self) -> None:
        """Makes `asked_to_stop` true in all processes."""
        if self.count > 1:
            self._client.key_value_set(_STOP, "", allow_overwrite=True)

    def asked_to_stop(self) -> bool:
        """Whether some process was told to stop, or has failed."""
        return self._try_get(_STOP) is not None or self._try_get(_FAILED) is not None

    def _set(self, key: str, value: Any) -> None:
        self._client.key_value_set_bytes(key, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def _get(self, key: str) -> Any:
        while True:
            try:
                data = self._client.blocking_key_value_get_bytes(key, int(_POLL_S * 1000))
                return pickle.loads(data)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            if (failure := self._try_get(_FAILED)) is not None:
                told = f"{failure}\n(process {self.index} cannot go on without it)"
                raise (ProcessError if self._try_get(_REFUSED) else ProcessLost)(told)

    def _try_get(self, key: str) -> str | None:
        try:
            return self._client.key_value_try_get(key)
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None


ALONE = Processes()


class Stop:
    """Ends the work of all processes at the same point once one of them is told to.

    Attributes:
      processes: of the run.
    """

    def __init__(self, processes: Processes):
        self.processes = processes
        self._asked = False
        self._work: asyncio.Task | None = None

    def heed_signals(self) -> None:
        """SIGTERM and SIGINT ask from now on; to be called where the event loop runs.

        Python gives signals to its main thread alone: in another one they stay as they are.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.ask)

    def ask(self) -> None:
        """What a signal does: work that may be given up ends now, in every process."""
        self._asked = True
        if self._work is not None:
            self._work.cancel()
        self.processes.ask_to_stop()

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of work that may be given up half-way and that speaks to no other process.

        Raises:
          Stopped: some process was told to stop before all had finished.
        """
        self._work = asyncio.create_task(work)
        if self._asked:
            self._work.cancel()
        watch = asyncio.create_task(self._watch()) if self.processes.count > 1 else None
        result = None
        try:
            result = await self._work
        except asyncio.CancelledError:
            if not self._asked:
                raise
        finally:
            self._work = None
            if watch is not None:
                watch.cancel()
        # In a thread, so that a signal is still heard while this one waits for the others.
        asked = self._asked if self.processes.count == 1 else any(
            await asyncio.to_thread(self.processes.gather, self._asked))
        if asked:
            raise Stopped
        return result

    async def _watch(self) -> None:
        while not await asyncio.to_thread(self.processes.asked_to_stop):
            await asyncio.sleep(_POLL_S)
        self._asked = True
        if self._work is not None:
            self._work.cancel()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `session` reads."""
    group = parser.add_argument_group("several processes (rime_jax/distributed.py)")
    group.add_argument(
        "--coordinator", metavar="auto|HOST:PORT",
        help="auto: the cluster is asked (TPU pod, SLURM, Open MPI, Kubernetes); otherwise a free "
             "port on the host of process 0",
    )
    group.add_argument("--processes", type=int, metavar="N", help="how many there are")
    group.add_argument("--process", type=int, metavar="I", help="which one this is, from 0")


@contextlib.contextmanager
def session(arguments: argparse.Namespace) -> Iterator[Processes]:
    """The processes that the arguments of `add_arguments` name, `together`.

    Raises:
      ProcessError, ProcessLost: as `start`.
    """
    coordinator, count, index = arguments.coordinator, arguments.processes, arguments.process
    explicit = coordinator not in (None, "auto")
    if {count is not None, index is not None} != {explicit}:
        raise ProcessError(
            "--coordinator HOST:PORT, --processes N and --process I go together; 'auto' and a "
            "program that is alone take neither of the last two")
    with together(ALONE if coordinator is None else start(coordinator, count, index)) as processes:
        yield processes


@contextlib.contextmanager
def together(processes: Processes) -> Iterator[Processes]:
    """An exception that leaves the block is told to the other processes, which then end too."""
    try:
        yield processes
    except BaseException as error:
        processes.fail(error)
        if processes.count > 1 and isinstance(error, jax.errors.JaxRuntimeError):
            _log.error("process %d: a device program failed. If that is because it lost another "
                       "process, that one's log has the cause.", processes.index)
        raise


def start(
    coordinator: str, count: int | None = None, index: int | None = None, *,
    wait_s: int = 300, heartbeat_s: int = 100,
) -> Processes:
    """Joins the other processes, before any device is used; returns when all are there.

    jax ends a process that waits in vain, or whose companion dies without a word, with a message of
    its own that cannot be caught.

    Args:
      coordinator: `auto`, or `host:port` of process 0.
      count: of processes; None with `auto`.
      index: of this process; None with `auto`.
      wait_s: seconds that the others may take to come.
      heartbeat_s: seconds without a sign of life after which a process counts as dead and the
        others end.

    Raises:
      ProcessError: there is no such cluster, or the numbers are wrong.
      ProcessLost: the coordinator cannot be reached.
    """
    if coordinator != "auto":
        if count is None or index is None:
            raise ProcessError(f"--coordinator {coordinator}: --processes N and --process I too, "
                               "or write auto")
        _check_numbers(coordinator, count, index)
        print(f"Process {index} of {count} joins {coordinator}; all have {wait_s} s to come, each "
              f"with a number of its own (--process 0 to {count - 1}).", flush=True)
        if index > 0:
            _reach(coordinator, wait_s)
    # The service would keep SIGTERM for itself.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            None if coordinator == "auto" else coordinator, count, index,
            cluster_detection_method=None if coordinator == "auto" else "deactivate",
            initialization_timeout=wait_s, heartbeat_timeout_seconds=heartbeat_s,
            shutdown_timeout_seconds=_SHUTDOWN_S)
    except ValueError as error:
        raise ProcessError(
            f"--coordinator auto: jax finds no cluster around this process ({error}); write "
            "--coordinator HOST:PORT --processes N --process I") from error
    except RuntimeError as error:
        raise ProcessLost(f"--coordinator {coordinator}: {error}") from error
    return _joined(count)


def check_same(processes: Processes, config: ml_collections.ConfigDict) -> None:
    """Compares code and configuration of all processes.

    Raises:
      ProcessError: in all of them, if two differ; names the first difference.
    """
    mine = {"the version of jax": jax.__version__, "the source of rime_jax": _source(),
            **dict(config_lib.flatten(config))}
    first, *others = processes.gather(mine)
    for i, other in enumerate(others, start=1):
        for name in [*first, *other]:
            if first.get(name) != other.get(name):
                raise ProcessError(
                    f"process {i} has {name} = {other.get(name)!r}, process 0 has "
                    f"{first.get(name)!r}; start all processes with the same code and options")


def check_shared(processes: Processes, file: pathlib.Path) -> None:
    """Compares a file that the first process has written with what the others see.

    Raises:
      ProcessError: in all processes, if one of them sees something else.
    """
    written = processes.gather(file.read_bytes() if processes.first else None)[0]
    deadline = time.monotonic() + _SHARED_S
    while not (same := file.is_file() and file.read_bytes() == written):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for i, sees in enumerate(processes.gather(same)):
        if not sees:
            raise ProcessError(
                f"process {i} does not see {file} as process 0 has written it; the run directory "
                "must be on a file system that all hosts share (--set run_dir=...)")


def _check_numbers(coordinator: str, count: int, index: int) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ProcessError(f"--coordinator {coordinator}: write auto, or HOST:PORT of process 0")
    if not 0 <= index < count:
        raise ProcessError(f"--process {index} --processes {count}: the numbers go from 0 to "
                           f"{count - 1}")


def _reach(coordinator: str, wait_s: int) -> None:
    """Waits for the coordinator's port."""
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + wait_s
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ProcessLost(
                    f"--coordinator {coordinator} cannot be reached within {wait_s} s ({error}); "
                    "does process 0 run on that host, and is the port open?") from error
        time.sleep(0.2)


def _joined(count: int | None) -> Processes:
    # There is no public way to the service.
    from jax._src import distributed

    if count not in (None, jax.process_count()):
        raise ProcessError(f"--processes {count}, but process 0 was started for "
                           f"{jax.process_count()}; give all the same number")
    return Processes(jax.process_index(), jax.process_count(), distributed.global_state.client)


def _source() -> str:
    """A digest of the package's code."""
    digest = hashlib.sha256()
    root = pathlib.Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
