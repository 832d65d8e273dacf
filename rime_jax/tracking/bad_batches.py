"""The batches of updates that were not finite, kept to be looked at.

    bad_batches/step_000012/<set>.<mini-batch>.process_<i>.npz

Each process writes its own rows; a file holds the arrays of `learner.batch.Batch` and where it
belongs. `numpy.load` reads it.
"""

import dataclasses
import pathlib
import re
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from rime_jax.learner import batch as batch_lib

# Newest steps that are kept; a run stops after three of them in a row.
_KEPT = 4


def save(
    directory: pathlib.Path, step: int, name: str, batches: Sequence[batch_lib.Batch], process: int
) -> pathlib.Path:
    """Writes the mini-batches of a parameter set; returns the folder of the step.

    Args:
      directory: the run's bad_batches/; made if missing.
      name: the parameter set whose updates were not all finite.
      batches: its mini-batches of this step, with this process's rows.
      process: number of this process.
    """
    folder = directory / f"step_{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    for i, batch in enumerate(batches):
        arrays: dict[str, Any] = {
            f.name: np.asarray(getattr(batch, f.name)) for f in dataclasses.fields(batch)}
        used = int(batch.n_micro)
        arrays = {k: x[:used] if x.ndim == 3 else x for k, x in arrays.items()}
        np.savez_compressed(folder / f"{name}.{i}.process_{process}.npz", **arrays, step=step,
                            set=name, minibatch=i, process=process)
    if process == 0:
        for old in steps(directory)[:-_KEPT]:
            shutil.rmtree(directory / f"step_{old:06d}", ignore_errors=True)
    return folder


def steps(directory: pathlib.Path) -> list[int]:
    """The steps that have batches, ascending."""
    names = (re.fullmatch(r"step_(\d+)", p.name) for p in directory.glob("step_*"))
    return sorted(int(name.group(1)) for name in names if name)
