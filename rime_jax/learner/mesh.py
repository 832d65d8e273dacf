"""Which device holds what: the mesh, and one table from logical to mesh axes."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")

# Logical axis of a parameter → mesh axis that divides it (None: every device has all of it). A
# family that wants an axis divided otherwise gives it another of these names, or None, in its
# `logical_axes`.
RULES = {
    "layers": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
}

ROWS = ("data", "fsdp")


def make_mesh(config: Any, devices: Sequence[Any]) -> Mesh:
    """The mesh (data, fsdp, tensor) over `devices`; `config` is the `learner` part of a config.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    sizes = [config[f"mesh_{axis}"] for axis in AXES]
    given = math.prod(s for s in sizes if s != -1)
    if -1 in sizes and len(devices) % given == 0:
        sizes[sizes.index(-1)] = len(devices) // given
    if math.prod(sizes) != len(devices):
        asked = ", ".join(f"learner.mesh_{a} = {config[f'mesh_{a}']}" for a in AXES)
        raise ValueError(
            f"{asked} do not fit {len(devices)} devices; their product must be that number (set one"
            " to -1 for the rest)"
        )
    # Axes of the slice's own torus are divided only where the sizes cannot be had otherwise.
    grid = mesh_utils.create_device_mesh(tuple(sizes), devices, allow_split_physical_axes=True)
    # The default are explicit axes, under which plain products of sharded arrays raise.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def processes(mesh: Mesh) -> int:
    """Processes that own devices of the mesh."""
    return len({device.process_index for device in mesh.devices.flat})


def platform(mesh: Mesh) -> str:
    """`cpu`, `gpu` or `tpu`."""
    return mesh.devices.flat[0].platform


def compiler_options(mesh: Mesh) -> dict[str, str]:
    """What the compiler is told about programs over this mesh.

    On TPUs, to gather a weight before the product and not piece by piece in a loop around it: such
    a loop keeps adding to the whole result, which for long rows and large vocabularies costs more
    memory traffic than the product itself.
    """
    if platform(mesh) != "tpu":
        return {}
    return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": str(1 << 20)}


def shardings(mesh: Mesh, logical_axes: Any, shapes: Any) -> Any:
    """A tree of NamedSharding for a tree of parameters.

    An axis that its mesh axis does not divide evenly is replicated, as is the second axis of a
    parameter that would use the same mesh axis twice.

    Args:
      mesh: from `make_mesh`.
      logical_axes: tree of tuples of names of `RULES`, or None for an axis that is never divided.
      shapes: the same tree of arrays or `jax.ShapeDtypeStruct`s.

    Raises:
      ValueError: a name that `RULES` lacks, or a tuple whose length is not the rank.
    """
    return jax.tree.map(lambda x, axes: NamedSharding(mesh, _spec(mesh, axes, x.shape)),
                        shapes, logical_axes)


def put(x: Any, at: NamedSharding) -> jax.Array:
    """An array of any number of processes, placed; what lies on hosts must be equal on all."""
    elsewhere = isinstance(x, jax.Array) and not x.is_fully_addressable
    if at.is_fully_addressable or elsewhere:
        return jax.device_put(x, at)
    # device_put would first send all of it to all processes, to compare.
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, at, lambda index: host[index])


def abstract(shapes: Any, at: Any) -> Any:
    """A tree of shapes with their shardings: arguments to lower a program without arrays."""
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, at)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Of batch arrays [M, R, L]: rows are divided over data and fsdp."""
    return NamedSharding(mesh, PartitionSpec(None, ROWS, None))


def feed_sharding(mesh: Mesh) -> NamedSharding:
    """Of batch arrays [M, R, L] as the processes bring them: an equal part of the rows each.

    Which devices form a row shard follows the network, not the processes: with tensor > 1 devices
    of two processes can need the same rows. So rows first lie where they were made, and then move.
    """
    n = processes(mesh)
    if n == 1:
        return batch_sharding(mesh)
    owned = sorted(mesh.devices.flat, key=lambda device: (device.process_index, device.id))
    by_process = Mesh(np.array(owned).reshape(n, -1), ("process", "device"),
                      axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(by_process, PartitionSpec(None, "process", None))


def hidden_sharding(mesh: Mesh) -> NamedSharding:
    """Of hidden states [R, L, D]: as the batch; every device has all features of its rows."""
    return NamedSharding(mesh, PartitionSpec(ROWS, None, None))


def rows_part(spec: PartitionSpec) -> PartitionSpec:
    """A parameter's spec without the mesh axes that do not divide rows."""
    return PartitionSpec(*(axis if axis in ROWS else None for axis in spec))


def gather_rows_part(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """Inside a `shard_map` over `ROWS`: the whole of what a device has its `rows_part` of."""
    for i, axis in enumerate(spec):
        if axis is not None:
            x = jax.lax.all_gather(x, axis, axis=i, tiled=True)
    return x


def replicated(mesh: Mesh) -> NamedSharding:
    """Of scalars."""
    return NamedSharding(mesh, PartitionSpec())


def row_shards(mesh: Mesh) -> int:
    """Parts into which the rows of a micro-batch are divided."""
    return math.prod(mesh.shape[axis] for axis in ROWS)


def _spec(mesh: Mesh, axes: tuple[str | None, ...], shape: tuple[int, ...]) -> PartitionSpec:
    if len(axes) != len(shape):
        raise ValueError(f"logical axes {axes} name {len(axes)} axes of a parameter of shape "
                         f"{shape}; policy.logical_axes() must name each")
    spec: list[str | None] = []
    for name, size in zip(axes, shape, strict=True):
        if name is not None and name not in RULES:
            raise ValueError(f"logical axis {name!r} has no rule; add it to RULES of"
                             f" rime_jax/learner/mesh.py (known: {sorted(RULES)})")
        axis = None if name is None else RULES[name]
        fits = axis is not None and axis not in spec and size % mesh.shape[axis] == 0
        spec.append(axis if fits else None)
    return PartitionSpec(*spec)
