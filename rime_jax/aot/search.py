"""The mesh, micro-batch and remat with which an update is fastest on a slice.

Candidates are compiled unless arithmetic alone says that they do not fit, or cannot be faster than
the best so far; those with the least possible time come first. Results are kept in a file, so that
a search goes on where it was stopped.
"""

import copy
import dataclasses
import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import ml_collections

from rime_jax import config as config_lib
from rime_jax.aot import hardware, programs, report
from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy import base
from rime_jax.policy.layers import REMATS

# Rows of a device in a micro-batch that are tried.
_DEPTHS = (1, 2, 4)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """What is varied: the mesh (data, fsdp, tensor), rows of a micro-batch, `model.remat`."""

    mesh: tuple[int, int, int]
    rows: int
    remat: str

    @property
    def options(self) -> dict[str, str]:
        """As given to `--set`."""
        sizes = {f"learner.mesh_{axis}": str(n)
                 for axis, n in zip(mesh_lib.AXES, self.mesh, strict=True)}
        return sizes | {"learner.microbatch_rows": str(self.rows), "model.remat": self.remat}

    def __str__(self) -> str:
        return f"mesh {'x'.join(map(str, self.mesh))}, {self.rows} rows, remat={self.remat}"


@dataclasses.dataclass(frozen=True)
class Result:
    """A compiled candidate; `row` has the figures of its update."""

    candidate: Candidate
    row: report.Row

    def as_json(self) -> dict[str, Any]:
        """All figures, for other programs."""
        return {"options": self.candidate.options, "fits": self.row.fits,
                "update": dataclasses.asdict(self.row)}


@dataclasses.dataclass(frozen=True)
class Space:
    """What is tried; None: everything that divides the slice.

    Attributes:
      meshes: (data, fsdp, tensor) each.
      rows: of a micro-batch over all devices.
      remats: of `layers.REMATS`.
    """

    meshes: Sequence[tuple[int, int, int]] | None = None
    rows: Sequence[int] | None = None
    remats: Sequence[str] | None = None


def search(
    config: ml_collections.ConfigDict, slice_: hardware.Slice, load: programs.Load,
    space: Space, file: pathlib.Path, tell: Callable[[str], None],
) -> list[Result]:
    """Compiled candidates, the fastest that fits first, those that do not fit last.

    Args:
      config: valid; what candidates do not vary stays as it is.
      slice_, load: as for `programs.make`.
      space: of candidates.
      file: of results; those in it are not compiled again, new ones are added.
      tell: hears of progress.

    Raises:
      ConfigError: nothing in `space` divides the slice or can fit it, or `file` cannot be read.
      ModelError: the model cannot be used.
    """
    known = _read(file)
    found: list[Result] = []
    tell("doing the arithmetic of all candidates …")
    planned = _planned(config, slice_, load, space)
    _require_writable(file)
    for number, plan in enumerate(planned, 1):
        of = f"[{number}/{len(planned)}] {plan.candidate}"
        key = _key(plan, slice_)
        if key not in known and found and _cannot_win(plan, min(found, key=_rank).row):
            tell(f"{of}: at least {plan.least_s:.3g} s, left out")
            continue
        if key not in known:
            tell(f"{of}: at least {plan.least_s:.3g} s, compiling …")
            known[key] = report.compile_all([plan.update], slice_)[0]
            _add(file, key, plan.candidate, known[key])
        found.append(Result(plan.candidate, known[key]))
        tell(f"{of}: {report.verdict(known[key])}, {known[key].run_s:.3g} s")
    return sorted(found, key=_rank)


def as_text(results: Sequence[Result]) -> str:
    """A table, best first."""
    head = ("mesh", "rows", "remat", "temporary", "peak", "verdict", "compute s", "HBM s", "ICI s",
            "run s", "MFU", "serial s")
    return report.table(head, [
        ("x".join(map(str, r.candidate.mesh)), str(r.candidate.rows), r.candidate.remat,
         *[f"{x / report.GIB:.2f}" for x in (r.row.temporary, r.row.peak)], report.verdict(r.row),
         *[f"{x:.3g}" for x in (r.row.compute_s, r.row.hbm_s, r.row.ici_s, r.row.run_s)],
         f"{100 * r.row.mfu:.0f} %", f"{r.row.serial_s:.3g}") for r in results])


def as_preset(best: Candidate, config_file: str, topology: str) -> str:
    """The text of a preset, to be read by `--set @FILE`."""
    lines = [f"# --config={config_file} --topology={topology}"]
    return "\n".join(lines + [f"{name}={value}" for name, value in best.options.items()])


@dataclasses.dataclass(frozen=True)
class _Plan:
    candidate: Candidate
    config: ml_collections.ConfigDict
    update: programs.Program
    compute_s: float
    ici_s: float

    @property
    def least_s(self) -> float:
        return max(self.compute_s, self.ici_s)

    @property
    def least(self) -> tuple[float, float]:
        """What it is ordered by; bounds of a row's `run_s` and `compute_s` + `ici_s`."""
        return self.least_s, self.compute_s + self.ici_s


def _planned(
    config: ml_collections.ConfigDict, slice_: hardware.Slice, load: programs.Load, space: Space,
) -> list[_Plan]:
    """Candidates that may fit, the one with the least possible time first."""
    policy = programs.make_policy(config)
    room = slice_.chip.hbm_gib * report.GIB / slice_.chip.devices
    plans, refused, least = [], [], math.inf
    for candidate in _candidates(policy, slice_, space):
        own = copy.deepcopy(config)
        config_lib.override(own, candidate.options)
        try:
            needed = _floor(policy, own, candidate, slice_)
            if needed <= room:
                update = programs.make(own, slice_, load)[0]
                needed += update.resident
        except ValueError as error:
            refused.append(f"{candidate}: {error}")
            continue
        if needed > room:
            # The one that is nearest to fitting says most.
            at = 0 if needed < least else len(refused)
            refused.insert(at, f"{candidate}: needs {needed / report.GIB:.1f} GiB at least")
            least = min(least, needed)
        else:
            plans.append(_Plan(candidate, own, update,
                               *_times(policy, own, candidate, update, slice_)))
    if not plans:
        raise config_lib.ConfigError(
            f"{slice_.name}: nothing to compile; {len(refused)} candidates cannot work, the best "
            f"one being {refused[0]}")
    return sorted(plans, key=lambda plan: plan.least)


def _candidates(
    policy: base.Policy, slice_: hardware.Slice, space: Space,
) -> Iterator[Candidate]:
    for sizes in space.meshes or _meshes(len(slice_.devices), policy.config.num_key_value_heads):
        shards = sizes[0] * sizes[1]
        for rows in space.rows or [shards * depth for depth in _DEPTHS]:
            for remat in space.remats or REMATS:
                yield Candidate(sizes, rows, remat)


def _meshes(devices: int, heads: int) -> Iterator[tuple[int, int, int]]:
    """All that divide the devices, and heads of keys by tensor (else every device has them all)."""
    for tensor in (n for n in range(1, devices + 1) if devices % n == 0 and heads % n == 0):
        rest = devices // tensor
        yield from ((rest // fsdp, fsdp, tensor) for fsdp in range(1, rest + 1) if rest % fsdp == 0)


def _floor(
    policy: base.Policy, config: ml_collections.ConfigDict, candidate: Candidate,
    slice_: hardware.Slice,
) -> int:
    """Bytes of a device without which no update is done."""
    at = mesh_lib.shardings(mesh_lib.make_mesh(config.learner, slice_.devices),
                            policy.logical_axes(), policy.shapes())
    params = programs.bytes_per_device(policy.shapes(), at)
    # Parameters, both moments of AdamW, the gradient; and the input of each layer.
    least = 4 * params + policy.config.num_hidden_layers * _activations(policy, config, candidate)
    if candidate.remat in ("none", "matmuls"):
        features = _products(policy) / policy.config.hidden_size / candidate.mesh[2]
        least += features * _activations(policy, config, candidate)
    return int(least)


def _products(policy: base.Policy) -> int:
    """Features of a token that the products with all layers' matrices make."""
    shapes, axes = jax.tree.leaves(policy.shapes()), jax.tree.leaves(
        policy.logical_axes(), is_leaf=lambda x: isinstance(x, tuple))
    return sum(x.shape[0] * x.shape[2] for x, names in zip(shapes, axes, strict=True)
               if len(names) == 3 and names[0] == "layers" and None not in names)


def _activations(
    policy: base.Policy, config: ml_collections.ConfigDict, candidate: Candidate
) -> int:
    """Bytes of a device's hidden states after a layer."""
    data, fsdp, _ = candidate.mesh
    tokens = candidate.rows // (data * fsdp) * config.learner.row_tokens
    return tokens * policy.config.hidden_size * jax.numpy.dtype(policy.dtype).itemsize


def _times(
    policy: base.Policy, config: ml_collections.ConfigDict, candidate: Candidate,
    update: programs.Program, slice_: hardware.Slice,
) -> tuple[float, float]:
    """Seconds that the arithmetic, and that the wires, take at their peak rates at least."""
    data, fsdp, tensor = candidate.mesh
    weights = (sum(x.size for x in jax.tree.leaves(policy.shapes()))
               * jax.numpy.dtype(policy.dtype).itemsize)
    # Weights are gathered twice and their gradients reduced; replicas add up their shards; two sums
    # of the hidden states per layer and pass.
    wire = update.loops * (
        3 * weights / tensor * (fsdp - 1) / fsdp
        + 2 * weights / (tensor * fsdp) * (data - 1) / data
        + 4 * policy.config.num_hidden_layers * _activations(policy, config, candidate)
        * 2 * (tensor - 1) / tensor)
    part = 1 / slice_.chip.devices
    return (update.executed_flops / (slice_.chip.peak_flops * part),
            wire / (slice_.chip.ici_bytes * part))


def _cannot_win(plan: _Plan, best: report.Row) -> bool:
    return best.fits and plan.least >= (best.run_s, best.compute_s + best.ici_s)


def _rank(result: Result) -> tuple[Any, ...]:
    row = result.row
    if row.fits:
        return (0, row.run_s, row.serial_s)
    return (1 + bool(row.error), -row.spare)


def _key(plan: _Plan, slice_: hardware.Slice) -> str:
    """Of all that figures depend on but the code of this package."""
    told = [slice_.name, jax.__version__, plan.update.resident, plan.update.loops,
            plan.update.model_flops, *(plan.config[part].to_dict() for part in
                                       ("model", "learner", "roles"))]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _read(file: pathlib.Path) -> dict[str, report.Row]:
    if not file.exists():
        return {}
    try:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return {line["key"]: report.Row(**line["row"]) for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise config_lib.ConfigError(
            f"--search {file}: not a file of results ({error}); name another, or a new one"
        ) from error


def _require_writable(file: pathlib.Path) -> None:
    """Before minutes of compilation rather than after."""
    try:
        file.open("a").close()
    except OSError as error:
        raise config_lib.ConfigError(
            f"--search {file}: cannot be written ({error.strerror}); name another") from error


def _add(file: pathlib.Path, key: str, candidate: Candidate, row: report.Row) -> None:
    line = json.dumps({"key": key, "candidate": str(candidate), "row": dataclasses.asdict(row)})
    with file.open("a") as out:
        out.write(line + "\n")
