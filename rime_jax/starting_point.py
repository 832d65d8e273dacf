"""Where parameter sets come from: the initial policy, a branch point, or a run's checkpoint."""

import contextlib
import pathlib
from collections.abc import Iterable
from typing import Any

import jax
import ml_collections

from rime_jax import config as config_lib
from rime_jax import parts
from rime_jax.learner import mesh as mesh_lib
from rime_jax.tracking import checkpoint


def sets(built: parts.Parts, params_at: Any) -> dict[str, Any]:
    """What a new run starts from: every set in use, in arrays of its own.

    Without `model.branch_from` that is the initial policy for all. With it each set gets what
    played its role in the run that is branched off: a shared set becomes two, and two stay two.

    Args:
      params_at: the sharding of each parameter.

    Raises:
      ConfigError, CheckpointError: the branch point is not there, or does not fit.
    """
    branch = built.config.model.branch_from
    if not branch:
        return built.initial_sets(params_at)
    run, step = _branch_point(branch)
    sources = _sources(built.config, config_lib.load(str(run / "config.json")), branch)
    return {name: _restore(built, run, step, [source], params_at)[source]
            for name, source in sorted(sources.items())}


def newest(built: parts.Parts, run: pathlib.Path) -> tuple[int, dict[str, Any]]:
    """The newest checkpoint of a run of this configuration: (step, parameter sets).

    Raises:
      CheckpointError: there is none, or it is of another model.
    """
    run, step = located(run)
    return step, restored(built, run, step)


def restored(built: parts.Parts, run: pathlib.Path, step: int) -> dict[str, Any]:
    """The parameter sets of this configuration from a checkpoint, placed as `placement` says.

    Raises:
      CheckpointError: it is not there, or of another model.
    """
    roles = built.config.roles
    return _restore(built, run, step, sorted({roles.act, roles.write}), placement(built))


def located(where: pathlib.Path) -> tuple[pathlib.Path, int]:
    """The run directory and the step of RUN (its newest checkpoint) or RUN/checkpoints/STEP.

    Raises:
      CheckpointError: there is no such checkpoint.
    """
    run, name = ((where.parent.parent, where.name) if where.parent.name == "checkpoints"
                 else (where, "last"))
    steps = _steps(run)
    if not steps:
        raise checkpoint.CheckpointError(f"{run} has no checkpoint yet; train it first")
    if name != "last" and (not name.isdigit() or int(name) not in steps):
        raise checkpoint.CheckpointError(f"{where} is no checkpoint; {run} has those of steps "
                                         f"{steps}")
    return run, steps[-1] if name == "last" else int(name)


def is_run(where: pathlib.Path) -> bool:
    """Whether this is a run directory or RUN/checkpoints/STEP; a directory of a model is not."""
    return where.parent.name == "checkpoints" or (where / "checkpoints").is_dir()


def placement(built: parts.Parts) -> Any:
    """The sharding of each parameter over all devices of all processes, as the learner has it.

    Raises:
      ConfigError: the mesh does not fit the devices.
    """
    try:
        mesh = mesh_lib.make_mesh(built.config.learner, jax.devices())
    except ValueError as error:
        raise config_lib.ConfigError(str(error)) from error
    return mesh_lib.shardings(mesh, built.policy.logical_axes(), built.policy.shapes())


def check_branch(built: parts.Parts, params_at: Any) -> None:
    """Whether `sets` can be made, before anything is written; reads no arrays.

    Raises:
      ConfigError, CheckpointError: what is wrong with `model.branch_from`, and the remedy.
    """
    branch = built.config.model.branch_from
    if branch:
        run, step = _branch_point(branch)
        sources = _sources(built.config, config_lib.load(str(run / "config.json")), branch)
        with _opened(run) as checkpoints:
            checkpoints.check_part(step, _wanted(built, sources.values(), params_at))


def _branch_point(branch: str) -> tuple[pathlib.Path, int]:
    """Run directory and step of RUN/checkpoints/STEP or RUN/checkpoints/last."""
    path = pathlib.Path(branch)
    run = path.parent.parent if path.parent.name == "checkpoints" else path
    if not (run / "config.json").is_file():
        raise config_lib.ConfigError(
            f"model.branch_from = {branch!r}: {run} is no run directory (it has no config.json); "
            "train that run first, or write the RUN/checkpoints/STEP of another")
    steps = _steps(run)
    if path.name == "last":
        # A checkpoint of a run that goes on would be another one at every look.
        if not steps or not (run / "eval" / "final.md").is_file():
            raise config_lib.ConfigError(
                f"model.branch_from = {branch!r}: {run} has not ended yet (its checkpoints: "
                f"{steps}); wait for it, or name a checkpoint")
        return run, steps[-1]
    if not path.name.isdigit() or int(path.name) not in steps or run == path:
        raise config_lib.ConfigError(
            f"model.branch_from = {branch!r} is no checkpoint; {run} has those of steps {steps}: "
            f"write e.g. {run}/checkpoints/{steps[-1] if steps else 'STEP'}")
    return run, int(path.name)


def _steps(run: pathlib.Path) -> list[int]:
    with _opened(run) as checkpoints:
        return checkpoints.steps()


def _opened(run: pathlib.Path) -> contextlib.closing:
    return contextlib.closing(checkpoint.Checkpoints(run / "checkpoints", 1, read_only=True))


def _sources(
    config: ml_collections.ConfigDict, other: ml_collections.ConfigDict, branch: str
) -> dict[str, str]:
    """Set of this run → set of the other that played its role."""
    found: dict[str, str] = {}
    for role in ("act", "write"):
        name, source = config.roles[role], other.roles[role]
        if found.setdefault(name, source) != source:
            raise config_lib.ConfigError(
                f"model.branch_from = {branch!r} has two parameter sets ({found[name]!r} acts, "
                f"{source!r} writes), which cannot become the one set {name!r}; give roles.act and "
                "roles.write two names")
    return found


def _restore(
    built: parts.Parts, run: pathlib.Path, step: int, names: Iterable[str], params_at: Any
) -> dict[str, Any]:
    with _opened(run) as checkpoints:
        return checkpoints.restore_part(step, _wanted(built, names, params_at))["params"]


def _wanted(built: parts.Parts, names: Iterable[str], params_at: Any) -> dict[str, Any]:
    """Shapes of the named sets, as a `LearnerState` holds them."""
    shapes = jax.tree.map(
        lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at),
        built.policy.shapes(), params_at)
    return {"params": dict.fromkeys(names, shapes)}
