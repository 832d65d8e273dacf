"""Runs experiments × seeds: skips what is finished, starts again what has failed.

    launch/sweep.py experiments/alchemy/*.py:tiny,steps=3
    launch/sweep.py 'experiments/codebase/*.py' --seeds 0,1,2 --on slurm --sbatch="--nodes=8"
    launch/sweep.py experiments/alchemy/rime.py --on tpu --slices=a,b --zone=us-east5-a

Everything is in OUT (runs/sweep): a run directory for each run, <name>_seed<k>, and what it prints
in logs/. Paths start at the repository. Patterns are expanded here, as a shell leaves those with
`:` alone (zsh wants quotes). Runs that start from a branch point (model.branch_from) wait for it,
if it is a run of the same sweep. Ctrl-C lets local runs save and end with status 75; the same
command goes on. It waits for local runs that outlived a killed sweep, or that another one trains.
"""

import argparse
import os
import pathlib
import shlex
import signal
import sys
import time
from collections.abc import Sequence

from rime_jax import config as config_lib
from rime_jax import errors, experiment
from rime_jax.sweep import board as board_lib
from rime_jax.sweep import jobs as jobs_lib
from rime_jax.sweep import places
from rime_jax.sweep.board import State

# Between two looks at the runs.
_POLL_S = 1.0
# For runs that were told to stop: they save first.
_SAVE_S = 120.0


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    with experiment.clean_errors():
        jobs = jobs_lib.plan(arguments.configs, arguments.seeds, arguments.out, arguments.set)
        place = _place(arguments)
        if arguments.dry_run:
            for line in dry_run(jobs, place):
                print(line)
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _interrupt)
        sweep = Sweep(jobs, place, arguments.retries)
        finished = sweep.run()
        # As rime_jax.train, so that launch/until_done.sh goes on with either.
        sys.exit(0 if finished else errors.STOPPED if sweep.interrupted
                 else errors.REFUSED if sweep.refused else errors.FAILED)


def dry_run(jobs: Sequence[jobs_lib.Job], place: places.Place) -> list[str]:
    """What a sweep would do, a line for each run."""
    lines = []
    for job in jobs:
        at = jobs_lib.progress(job)
        if job.same_as is not None:
            lines.append(f"# {job.name}: the same as {job.same_as}, not run")
        elif at.finished:
            lines.append(f"# {job.name}: finished its {job.config.steps} steps, skipped")
        else:
            why = f"goes on after step {at.step}" if at.step else "new"
            if job.after is not None:
                why += f", after {job.after}"
            lines += [f"# {job.name}: {why}", place.command(job)]
    return lines


class Sweep:
    """The jobs, where they are run, and what became of them.

    Attributes:
      interrupted: Ctrl-C or SIGTERM ended `run`.
      refused: no run has failed but those that would again, for what the user gave.
    """

    def __init__(self, jobs: Sequence[jobs_lib.Job], place: places.Place, retries: int,
                 board: board_lib.Board | None = None, poll_s: float = _POLL_S):
        """Args:
          retries: times a run that failed is started again.
          poll_s: seconds between two looks.
        """
        self._jobs, self._place, self._retries = list(jobs), place, retries
        self._board, self._poll_s = board or board_lib.Board(), poll_s
        self.interrupted = False
        self._refused: set[str] = set()
        self._handles: dict[str, places.Handle] = {}
        self._starts = {job.name: 0 for job in jobs}
        self._states = {job.name: State.WAITING for job in jobs}
        self._notes: dict[str, str] = {}
        self._progress = {job.name: jobs_lib.progress(job) for job in jobs}

    def run(self) -> bool:
        """Runs everything; True where all has finished."""
        for job in self._jobs:
            self._begin(job)
        try:
            while True:
                for job in self._jobs:
                    self._look(job)
                for job in self._jobs:
                    self._start_if_possible(job)
                self._show()
                if not self._handles:
                    break
                time.sleep(self._poll_s)
        except KeyboardInterrupt:
            self.interrupted = True
            self._stop()
        except BaseException:  # A full disk, a scheduler that is gone: no run is left behind.
            self._stop()
            raise
        self._show()
        print("\n" + board_lib.table(self._jobs, self._states, self._notes, self._progress))
        return all(s in (State.FINISHED, State.SAME) for s in self._states.values())

    @property
    def refused(self) -> bool:
        return self._refused == {name for name, state in self._states.items()
                                 if state is State.FAILED}

    def _begin(self, job: jobs_lib.Job) -> None:
        if job.same_as is not None:
            self._states[job.name], self._notes[job.name] = State.SAME, f"as {job.same_as}"
        elif self._progress[job.name].finished:
            self._states[job.name], self._notes[job.name] = State.FINISHED, "before this sweep"
        elif (handle := self._place.adopt(job)) is not None:
            self._handles[job.name], self._states[job.name] = handle, State.RUNNING

    def _look(self, job: jobs_lib.Job) -> None:
        handle = self._handles.get(job.name)
        if handle is None:
            return
        status = handle.poll()
        self._progress[job.name] = at = jobs_lib.progress(job)
        if status is None:
            return
        del self._handles[job.name]
        if at.finished:
            self._states[job.name] = State.FINISHED
            self._notes.pop(job.name, None)
        else:
            self._notes[job.name] = _why(job, status)
            if status == errors.REFUSED:
                self._refused.add(job.name)
            if status == errors.STOPPED:  # It has saved, as at a time limit: no failure.
                self._starts[job.name] -= 1
            again = status != errors.REFUSED and self._starts[job.name] <= self._retries
            self._states[job.name] = State.WAITING if again else State.FAILED

    def _start_if_possible(self, job: jobs_lib.Job) -> None:
        if self._states[job.name] is not State.WAITING:
            return
        if job.after is not None:
            before = self._states[job.after]
            if before in (State.FAILED, State.BLOCKED):
                self._states[job.name] = State.BLOCKED
                self._notes[job.name] = f"{job.after} has failed"
            if before is not State.FINISHED:
                return
        if len(self._handles) < self._place.slots:
            handle = self._place.adopt(job)  # Another sweep may have started it meanwhile.
            if handle is None:
                self._starts[job.name] += 1
                handle = self._place.start(job)
            self._handles[job.name], self._states[job.name] = handle, State.RUNNING

    def _stop(self) -> None:
        ending = {}
        for name, handle in self._handles.items():
            self._states[name] = State.STOPPED
            said = handle.stop()
            if said is None:
                ending[name] = handle
            else:
                self._notes[name] = said
        # Behind the signals, as a terminal that is gone cannot be told.
        print("\nStopping; runs save first …", flush=True)
        until = time.monotonic() + _SAVE_S
        while time.monotonic() < until and any(h.poll() is None for h in ending.values()):
            time.sleep(self._poll_s)
        self._notes |= {name: "still saving" for name, h in ending.items() if h.poll() is None}
        self._progress |= {job.name: jobs_lib.progress(job) for job in self._jobs}

    def _show(self) -> None:
        self._board.show(self._jobs, self._states, self._notes, self._progress)


def _why(job: jobs_lib.Job, status: int) -> str:
    """The last words of a run that did not finish."""
    log = places.log_of(job)
    try:
        words = [line for line in log.read_text(errors="replace")[-4000:].splitlines()
                 if line.strip()]
    except OSError:
        words = []
    # What a run prints may hold commands of terminals.
    shown = "".join(c if c.isprintable() else " " for c in words[-1]) if words else ""
    said = shown.strip()[:120] or "it said nothing"
    return f"exit status {status}: {said} ({log})"


def _place(arguments: argparse.Namespace) -> places.Place:
    if arguments.on == "tpu":
        if not arguments.slices or not arguments.zone:
            raise config_lib.ConfigError("--on tpu needs --slices=NAME,… and --zone=ZONE")
        return places.Slices(arguments.slices.split(","), arguments.zone)
    if arguments.on == "slurm":
        return places.Slurm(arguments.out, shlex.split(arguments.sbatch), arguments.jobs or 1000)
    return places.Local(arguments.jobs or max(1, (os.cpu_count() or 1) // 2))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch/sweep.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", metavar="CONFIG",
                        help="experiment files or patterns of them, each with or without "
                             ":ARGUMENTS")
    parser.add_argument("--seeds", type=_numbers, default=[0], metavar="0,1,…",
                        help="added to each configuration's own seed (default: 0)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/sweep"),
                        help="where run directories and logs go (default: runs/sweep)")
    parser.add_argument("--set", action="extend", nargs="+", default=[], metavar="OPTION=VALUE",
                        help="changes options of all runs")
    parser.add_argument("--on", choices=("local", "slurm", "tpu"), default="local",
                        help="where the runs are trained (default: local)")
    parser.add_argument("--jobs", type=_count, metavar="N",
                        help="runs at a time (default: one for two cores; SLURM: all)")
    parser.add_argument("--retries", type=_whole, default=1, metavar="N",
                        help="times a run that fails is started again (default: 1)")
    parser.add_argument("--sbatch", default="", metavar="OPTIONS",
                        help="slurm: further options of sbatch, e.g. '--partition=gpu --nodes=2'")
    parser.add_argument("--slices", default="", metavar="NAME,…", help="tpu: slices that are up")
    parser.add_argument("--zone", default="", help="tpu: their zone")
    parser.add_argument("--dry-run", action="store_true",
                        help="only prints what would be run, and why not the rest")
    return parser


def _numbers(text: str) -> list[int]:
    found = [_whole(part) for part in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} names a seed twice")
    return found


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


def _count(text: str) -> int:
    if _whole(text) == 0:
        raise argparse.ArgumentTypeError("at least one run at a time")
    return int(text)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
