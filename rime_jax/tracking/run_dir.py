"""The run directory: everything one run writes.

    config.json           the resolved configuration; a run can be started again from it
    checkpoints/          tracking.checkpoint
    metrics.jsonl         tracking.metrics, one line per iteration
    tb/                   TensorBoard event files
    samples/              trajectories and memories, one step_NNNNNN.jsonl.gz per dump
    eval/                 results of evaluations
    report/               the site of rime_jax.report
    judge_cache/          judge.cache, the verdicts of a judge server
    bad_batches/          tracking.bad_batches, of updates that were not finite
    model/<set>/          the trained parameter sets, when the run has ended
    lock                  held by the process that trains
"""

import contextlib
import fcntl
import gzip
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_collections

from rime_jax import config as config_lib
from rime_jax import errors
from rime_jax.tracking import metrics

# What may change between a run and its continuation: neither enters the training's numbers.
_MAY_CHANGE = re.compile(
    r"steps|run_dir|resume|(track|eval)\..*|judge\.(urls|concurrency|timeout_s|retries|cache_dir)")


def path_of(config: ml_collections.ConfigDict, source: str) -> pathlib.Path:
    """Where a run of `config` belongs.

    `run_dir` if it is set; the directory of `source` (what --config named) if that is the
    config.json of a run, which may have been moved; else runs/<name>.
    """
    if config.run_dir:
        return pathlib.Path(config.run_dir)
    beside = RunDir(pathlib.Path(source).parent)
    if pathlib.Path(source).name == "config.json" and beside.checkpoints.is_dir():
        return beside.path
    return pathlib.Path("runs") / config.name


def identity(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The options that a run keeps for its whole life: a training of others is another one."""
    return {name: config_lib.get(config, name) for name, _ in config_lib.options()
            if not _MAY_CHANGE.fullmatch(name)}


class RunDir:
    """Paths of one run directory, and the files that have no module of their own."""

    def __init__(self, path: str | os.PathLike):
        """Only names the places; `create_or_resume` makes them."""
        self.path = pathlib.Path(path)
        self.config = self.path / "config.json"
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.tb = self.path / "tb"
        self.samples = self.path / "samples"
        self.eval = self.path / "eval"
        self.bad_batches = self.path / "bad_batches"

    def create_or_resume(self, config: ml_collections.ConfigDict, resume: bool) -> bool:
        """Makes the directory for `config`, or checks that the run in it may be continued.

        Nothing is ever deleted. On a continuation config.json is brought up to date: the number
        of steps, the tracking and the evaluation may differ from what the run began with.

        Returns:
          True where the directory already holds a run of this configuration.

        Raises:
          ConfigError: the directory holds a run and `resume` is off; or the run has another
            configuration (the first differing option is named); or files of a run lie there
            without their config.json.
        """
        exists = self.config.exists()
        if exists and not resume:
            raise config_lib.ConfigError(
                f"{self.path} already holds a run, and resume = False would mix a second one into "
                f"it; give the new run a directory of its own (--set run_dir=...), or delete "
                f"{self.path} yourself"
            )
        if exists:
            self._check_same(config)
        elif self.metrics.exists() or self.checkpoints.exists():
            raise config_lib.ConfigError(
                f"{self.path} holds metrics or checkpoints but no config.json, so that the run "
                f"they belong to is unknown; choose another directory (--set run_dir=...)"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        metrics.write_atomically(self.config, config_lib.dump(config).encode())
        for folder in (self.checkpoints, self.tb, self.samples, self.eval):
            folder.mkdir(exist_ok=True)
        return exists

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second training out of the directory; the lock falls with its process.

        Raises:
          TransientError: another process trains here.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise errors.TransientError(
                    f"another process trains in {self.path}; wait for it, or give this run a "
                    f"directory of its own (--set run_dir=...)"
                ) from None
            yield

    def locked(self) -> bool:
        """Whether a process of this machine trains here."""
        try:
            with (self.path / "lock").open() as file:
                # Shared, so that those who only ask do not take each other for a training.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _check_same(self, config: ml_collections.ConfigDict) -> None:
        saved = config_lib.load(str(self.config))
        for name, new in identity(config).items():
            old = config_lib.get(saved, name)
            if old != new:
                raise config_lib.ConfigError(
                    f"{self.path} holds a run with {name} = {old!r}, not {new!r}; continue it with "
                    f"its own value (--set {name}={config_lib.as_text(old)}), or start another run "
                    f"(--set run_dir=..., or another c.name in the experiment file)"
                )

    def write_samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> pathlib.Path:
        """Writes the rows of one dump (trajectories, memories) as compressed JSONL, atomically.

        A dump of the same step is replaced: a resumed run makes it again. Returns the file.
        """
        lines = "".join(json.dumps(metrics.jsonable(row)) + "\n" for row in rows)
        path = self.samples_file(step)
        # mtime=0: the same rows give the same bytes.
        metrics.write_atomically(path, gzip.compress(lines.encode(), mtime=0))
        return path

    def read_samples(self, step: int) -> list[dict[str, Any]]:
        """The rows of one dump.

        Raises:
          FileNotFoundError: there is no dump of this step; `sample_steps` lists them.
        """
        text = gzip.decompress(self.samples_file(step).read_bytes()).decode()
        return [json.loads(line) for line in text.splitlines()]

    def sample_steps(self) -> list[int]:
        """The steps that have a dump, ascending."""
        names = (re.fullmatch(r"step_(\d+)\.jsonl\.gz", p.name) for p in self.samples.glob("*"))
        return sorted(int(name.group(1)) for name in names if name)

    def samples_file(self, step: int) -> pathlib.Path:
        """Where the dump of a step lies, whether it is there or not."""
        return self.samples / f"step_{step:06d}.jsonl.gz"
