"""Where the runs of a sweep are trained: on this machine, on TPU slices, under SLURM."""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rime_jax import config as config_lib
from rime_jax import errors
from rime_jax.sweep.jobs import Job
from rime_jax.tracking import metrics
from rime_jax.tracking.run_dir import RunDir

# For telling a slice that its run is to stop.
_TELL_S = 60.0
# Between two questions to the scheduler.
_ASK_S = 10.0
# For a scheduler that has answered before and is silent now.
_SILENT_S = 900.0
# States of a job that has not ended, in the words of sacct.
_UNDER_WAY = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "RESIZING", "CONFIGURING",
              "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT")


class Handle(Protocol):
    """A run that was started."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs (or waits for its machine)."""

    def stop(self) -> str | None:
        """Tells it to save and end; or says why it goes on."""


class Place(Protocol):
    """Attributes:
      slots: runs that may be under way at a time.
    """

    slots: int

    def adopt(self, job: Job) -> Handle | None:
        """The run of this job that an earlier sweep started and that goes on without it."""

    def start(self, job: Job) -> Handle:
        """Starts a run; what it prints goes to `log_of(job)`."""

    def command(self, job: Job) -> str:
        """What `start` does, for people."""


def log_of(job: Job) -> pathlib.Path:
    """What the runs of a job print."""
    return job.directory.parent / "logs" / f"{job.name}.log"


class Local:
    """Processes of this machine; those that outlive a killed sweep are waited for by the next."""

    def __init__(self, slots: int):
        self.slots = slots

    def adopt(self, job: Job) -> "Elsewhere | None":
        return Elsewhere(job) if RunDir(job.directory).locked() else None

    def start(self, job: Job) -> "Process":
        cores = min(2, os.cpu_count() or 1)
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        # As launch/local.sh: sampling on one device keeps one core busy, and all runs share the
        # compiled programs.
        defaults = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={cores}",
                    "JAX_COMPILATION_CACHE_DIR": f"{cache}/rime_jax/xla"}
        return Process(job.command(sys.executable), log_of(job), defaults | dict(os.environ))

    def command(self, job: Job) -> str:
        return shlex.join(job.command("python"))


class Slices:
    """TPU slices that are up, one run on each; reached with gcloud.

    The repository, its environment and the run directories must lie under the same paths on all
    workers and on this machine (a shared disk with locks and appends, such as NFS).
    """

    def __init__(self, names: Sequence[str], zone: str):
        self.slots = len(names)
        self._free, self._zone = list(names), zone

    def adopt(self, job: Job) -> None:
        return None

    def start(self, job: Job) -> "Process":
        name = self._free.pop(0)
        pid = shlex.quote(f"{log_of(job).resolve()}.pid")

        def stop() -> None:
            # One process that is told suffices: all of them save and end.
            subprocess.run(self._ssh(name, "0", f"kill -TERM $(cat {pid}.$(hostname))"),
                           capture_output=True, timeout=_TELL_S, check=False)

        return Process(
            self._ssh(name, "all", f"cd {shlex.quote(os.getcwd())} && echo $$ >{pid}.$(hostname) "
                      f"&& exec {self._training(job)}"),
            log_of(job), dict(os.environ), stop, lambda: self._free.append(name))

    def command(self, job: Job) -> str:
        return shlex.join(self._ssh("SLICE", "all", self._training(job)))

    def _training(self, job: Job) -> str:
        return shlex.join([*job.command(sys.executable), "--coordinator", "auto"])

    def _ssh(self, name: str, worker: str, command: str) -> list[str]:
        return ["gcloud", "compute", "tpus", "tpu-vm", "ssh", name, f"--zone={self._zone}",
                f"--worker={worker}", f"--command={command}"]


class Elsewhere:
    """A run of this machine that is trained by a process of which nothing else is known."""

    def __init__(self, job: Job):
        self._files = RunDir(job.directory)

    def poll(self) -> int | None:
        return None if self._files.locked() else 0

    def stop(self) -> str:
        return f"another process trains in {self._files.path} and goes on"


class Process:
    """A child process."""

    def __init__(
        self, command: Sequence[str], log: pathlib.Path, environment: dict[str, str],
        stop: Callable[[], None] | None = None, ended: Callable[[], None] = lambda: None,
    ):
        """Args:
          stop: tells it to end; None: by SIGTERM.
          ended: called once when it has.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"\n$ {shlex.join(command)}\n".encode())
            file.flush()
            # A session of its own: a Ctrl-C for the sweep must not reach it twice.
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT,
                                             env=environment, start_new_session=True)
        self._stop, self._ended, self._told = stop, ended, False

    def poll(self) -> int | None:
        status = self._process.poll()
        if status is not None and not self._told:
            self._told = True
            self._ended()
        return status

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()
        else:
            self._process.send_signal(signal.SIGTERM)


class Slurm:
    """Jobs of a SLURM cluster; they go on when the sweep ends, and the next one finds them."""

    def __init__(self, out: pathlib.Path, options: Sequence[str], slots: int):
        """Args:
          out: of the sweep; its slurm.json remembers the ids.
          options: of sbatch, such as --partition=tpu --nodes=4.
        """
        self.slots = slots
        self._file, self._options = out / "slurm.json", list(options)
        self._asked, self._queued = -_ASK_S, frozenset()
        self._answered: float | None = None

    def adopt(self, job: Job) -> "SlurmJob | None":
        known = self._known().get(job.name)
        return SlurmJob(self, known) if known and known in self.queued() else None

    def start(self, job: Job) -> "SlurmJob":
        log_of(job).parent.mkdir(parents=True, exist_ok=True)
        printed = _told(self._sbatch(job)).strip()
        # `ID`, or `ID;CLUSTER`.
        number = printed.split(";")[0].splitlines()[-1] if printed else ""
        if not number.isdigit():
            raise config_lib.ConfigError(f"sbatch answered {printed!r} instead of a job's number")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        metrics.write_atomically(
            self._file, json.dumps(self._known() | {job.name: number}).encode())
        # The list that was asked for before does not have it yet.
        self._queued |= {number}
        self._asked = time.monotonic()
        return SlurmJob(self, number)

    def command(self, job: Job) -> str:
        return shlex.join(self._sbatch(job))

    def queued(self) -> frozenset[str]:
        """Numbers of the jobs that wait or run."""
        now = time.monotonic()
        if now - self._asked >= _ASK_S:
            self._asked = now
            try:
                self._queued = frozenset(_told(["squeue", "--me", "-h", "-o", "%i"]).split())
                self._answered = now
            except errors.TransientError:
                # A busy controller does not always answer; its jobs go on.
                if self._answered is None or now - self._answered > _SILENT_S:
                    raise
        return self._queued

    def _sbatch(self, job: Job) -> list[str]:
        training = shlex.join([*job.command(sys.executable), "--coordinator", "auto"])
        return ["sbatch", "--parsable", f"--job-name={job.name}",
                f"--output={log_of(job).resolve()}", "--open-mode=append", "--requeue",
                # For the tasks, which save; srun would kill them at it (B:TERM).
                "--signal=TERM@120", f"--chdir={os.getcwd()}", *self._options,
                f"--wrap=exec srun {training}"]

    def _known(self) -> dict[str, str]:
        return {name: number for name, number in metrics.read_object(self._file).items()
                if isinstance(number, str) and number.isdecimal()}


class SlurmJob:
    """One job of the cluster."""

    def __init__(self, place: Slurm, number: str):
        self._place, self._number = place, number

    def poll(self) -> int | None:
        if self._number in self._place.queued():
            return None
        try:
            state = _told(["sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j", self._number])
        except (config_lib.ConfigError, errors.TransientError):
            return 0  # Clusters need not keep accounts; whether it has finished, its files tell.
        if state.startswith(_UNDER_WAY):  # A list without it was not the whole list.
            return None
        if state.startswith("PREEMPTED") or f"|{errors.STOPPED}:" in state:
            return errors.STOPPED
        return 0 if not state.strip() or state.startswith("COMPLETED") else 1

    def stop(self) -> str:
        return f"SLURM job {self._number} goes on; scancel {self._number} ends it"


def _told(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace",
                              check=True).stdout
    except FileNotFoundError:
        raise config_lib.ConfigError(
            f"{command[0]} is not there; a sweep over SLURM is started where jobs are "
            "submitted") from None
    except subprocess.CalledProcessError as error:
        raise errors.TransientError(f"{command[0]} failed: {error.stderr.strip()}") from None
