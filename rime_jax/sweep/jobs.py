"""The runs of a sweep: which there are, what each waits for, and how far it is on disk."""

import collections
import dataclasses
import glob
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_collections

from rime_jax import config as config_lib
from rime_jax import experiment
from rime_jax.tracking import metrics, run_dir
from rime_jax.tracking.values import is_number

# Enough of the end of metrics.jsonl for its last lines.
_TAIL_BYTES = 1 << 17


@dataclasses.dataclass(frozen=True)
class Job:
    """One configuration with one seed.

    Attributes:
      name: unique in a sweep; the run directory's last part.
      source: what `--config` names.
      settings: what `--set` changes.
      config: the resolved configuration.
      directory: the run directory.
      after: name of the job whose last checkpoint this one starts from, or None.
      same_as: name of the job whose numbers this one would repeat, or None; it does not run.
    """

    name: str
    source: str
    settings: tuple[str, ...]
    config: ml_collections.ConfigDict
    directory: pathlib.Path
    after: str | None = None
    same_as: str | None = None

    def command(self, python: str) -> list[str]:
        """The program's arguments; to be run at the root of the repository."""
        return [python, "-m", "rime_jax.train", f"--config={self.source}", "--set",
                *self.settings]


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a run directory tells: the last step, and numbers of it and of evaluations."""

    step: int
    finished: bool
    performance: float | None
    gain: float | None


def plan(
    patterns: Sequence[str], seeds: Sequence[int], out: pathlib.Path, settings: Sequence[str] = ()
) -> list[Job]:
    """The jobs of a sweep, branch points before what starts from them.

    Args:
      patterns: FILE.py, or a shell pattern of such files, each with or without `:ARGUMENTS`.
      seeds: added to the seed of each configuration.
      out: where the run directories go.
      settings: further `OPTION=VALUE`, for all.

    Raises:
      ConfigError: says all that is wrong with any of them.
    """
    jobs, errors = [], []
    for source in _expand(patterns, errors):
        for seed in seeds:
            try:
                jobs.append(_job(source, seed, out, settings))
            except config_lib.ConfigError as error:
                errors.append(str(error))
                break
    jobs = _one_of_each_name(jobs, errors)
    jobs = [_branched(job, jobs, out, errors) for job in jobs]
    jobs = _without_doubles(jobs)
    waits = {job.name: _waits(job, jobs, errors) for job in jobs}
    if errors:
        raise config_lib.ConfigError("\n".join(dict.fromkeys(errors)))
    return sorted(jobs, key=lambda job: waits[job.name])


def progress(job: Job) -> Progress:
    """How far a job is; reads a few files and never fails."""
    files = run_dir.RunDir(job.directory)
    lines = _last_lines(files.metrics)
    ends = metrics.read_object(files.eval / "final.json").get("policies")
    rows = _trained(ends) if isinstance(ends, dict) else {}

    def last(name: str) -> float | None:
        return next((line[name] for line in reversed(lines)
                     if is_number(line.get(name))), None)

    def at_the_end(name: str) -> float | None:
        cell = rows[max(rows)].get(name) if rows else None
        if isinstance(cell, list) and cell and is_number(cell[0]):
            return cell[0]
        return last(f"eval/{name}")

    performance = at_the_end("performance")
    return Progress(
        step=max((line["step"] for line in lines), default=0),
        finished=max(rows, default=-1) >= job.config.steps,
        performance=last("performance/mean") if performance is None else performance,
        gain=at_the_end("gain"))


def _expand(patterns: Sequence[str], errors: list[str]) -> Iterable[str]:
    for pattern in patterns:
        found = re.fullmatch(r"(.*?\.(?:py|json))((?::.*)?)", pattern, re.DOTALL)
        file, arguments = found.groups() if found else (pattern, "")
        # A file may have the brackets of a pattern in its own name.
        files = [file] if os.path.isfile(file) else sorted(glob.glob(file))
        if not files:
            errors.append(f"{pattern}: no such file: {pathlib.Path(file).absolute()}")
        yield from (f"{name}{arguments}" for name in files)


def _job(source: str, seed: int, out: pathlib.Path, settings: Sequence[str]) -> Job:
    config = experiment.read(source, settings)
    config.seed += seed
    config_lib.validate(config)
    name = f"{config.name}_seed{seed}"
    directory = out / name
    own = (*settings, f"seed={config.seed}", f"run_dir={directory}")
    return Job(name, source, own, config, directory)


def _numbers(job: Job) -> dict[str, Any]:
    """The options that its numbers depend on."""
    return {k: v for k, v in config_lib.flatten(job.config) if k not in ("name", "run_dir")}


def _one_of_each_name(jobs: Sequence[Job], errors: list[str]) -> list[Job]:
    found: dict[str, Job] = {}
    for job in jobs:
        other = found.setdefault(job.name, job)
        if _numbers(other) != _numbers(job):
            errors.append(f"{other.source} and {job.source} are different experiments of one name "
                          f"({job.config.name}); give one of them another c.name")
    return list(found.values())


def _without_doubles(jobs: Sequence[Job]) -> list[Job]:
    """Of jobs with the same numbers the one with the shortest name runs, and all branch points."""
    needed = {job.after for job in jobs}
    groups: dict[str, list[Job]] = collections.defaultdict(list)
    for job in jobs:
        groups[repr(sorted(_numbers(job).items()))].append(job)
    first = {job.name: min(own, key=lambda job: len(job.name)).name
             for own in groups.values() for job in own}
    return [job if first[job.name] == job.name or job.name in needed
            else dataclasses.replace(job, same_as=first[job.name]) for job in jobs]


def _branched(job: Job, jobs: Sequence[Job], out: pathlib.Path, errors: list[str]) -> Job:
    """With its branch point in this sweep, where that is a run of it."""
    found = re.fullmatch(r"(.*)/checkpoints/last", job.config.model.branch_from)
    if not found:
        return job
    base = pathlib.Path(found.group(1))
    run = f"{base.name}_{job.name.rpartition('_')[2]}"
    here = run if any(other.name == run for other in jobs) else None
    if here is None and not (out / run / "config.json").is_file():
        if not (base / "config.json").is_file():
            errors.append(
                f"{job.source} starts from {base}, which is not there: add the experiment of that "
                f"name ({base.name.removesuffix('_tiny')}) to the sweep, or set model.branch_from")
        return job
    branch = f"model.branch_from={out / run}/checkpoints/last"
    return dataclasses.replace(job, after=here, settings=(*job.settings, branch))


def _waits(job: Job, jobs: Sequence[Job], errors: list[str]) -> int:
    """How many jobs come one after the other before this one."""
    by_name, chain = {other.name: other for other in jobs}, [job.name]
    while (after := by_name[chain[-1]].after) is not None:
        if after in chain:
            errors.append(f"{job.source} starts from its own end ({' < '.join([*chain, after])}); "
                          "set model.branch_from to a run that comes before it")
            break
        chain.append(after)
    return len(chain) - 1


def _last_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    return [found for line in lines if (found := metrics.parse(line)) is not None]


def _trained(policies: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Step → row of an evaluation."""
    return {int(found.group(1)): row for name, row in policies.items()
            if (found := re.fullmatch(r"step ([0-9]{1,15})", name)) and isinstance(row, dict)}
