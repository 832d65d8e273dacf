"""From the learner's layout of the parameters to the sampler's.

The learner divides float32 parameters over the whole mesh. The samplers want them in the dtype of
the activations, whole or divided among a few neighbours, in buffers of their own: the next update
consumes the learner's. One compiled program narrows and gathers; with several processes each then
holds what its local sampler needs, and takes it without a copy.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy.base import Params, Policy, narrow


class Reshard:
    """Makes the sampler's parameters of one process; holds compiled programs and no arrays.

    Attributes:
      mesh: of the local devices, from `group_mesh`.
      params_at: the sharding of each parameter over it.
    """

    def __init__(self, policy: Policy, devices: Sequence[Any], tensor: int = 1):
        """Args:
          policy: the pure functions.
          devices: local ones; with several processes, all of this process.
          tensor: devices that share one copy.

        Raises:
          ValueError: the devices do not form groups.
        """
        self._policy, self._tensor = policy, tensor
        self.mesh = group_mesh(devices, tensor)
        self.params_at = params_at(policy, self.mesh)
        self._programs: dict[Any, Callable] = {}

    def __call__(self, params: Params) -> Params:
        """A copy of `params`, wherever they lie, as `params_at` says.

        With several processes, all must call it together where `params` are global.
        """
        params = jax.tree.map(jnp.asarray, params)
        local = jax.tree.leaves(params)[0].sharding.is_fully_addressable
        moved = self._program(params)(params)
        return moved if local else jax.tree.map(_local_view, moved, self.params_at)

    def _program(self, params: Params) -> Callable[[Params], Params]:
        source = jax.tree.map(lambda x: x.sharding, params)
        first, tree = jax.tree.flatten(source)
        key = (tree, *first)
        if key not in self._programs:
            self._programs[key] = self._make_program(source, _devices(first[0]))
        return self._programs[key]

    def _make_program(self, source: Any, order: list[Any]) -> Callable[[Params], Params]:
        local = jax.tree.leaves(source)[0].is_fully_addressable
        mesh = self.mesh if local else group_mesh(order, self._tensor)
        if list(mesh.devices.flat) == order:
            return _jit(self._policy, source, mesh)
        # A program has one order of devices. Where groups of neighbours are in another than the
        # learner's mesh, or the parameters lie elsewhere, the narrow copy is moved by itself.
        cast = jax.jit(functools.partial(narrow, self._policy), out_shardings=source)
        apart = jax.jit(unstack, out_shardings=params_at(self._policy, mesh))
        target = _stacked_at(self._policy, mesh)
        return lambda params: apart(jax.device_put(cast(params), target))


def unstack(params: Params) -> Params:
    """Each stack of layers (a dict on the second level) as a tuple of layers.

    A sampler's program would otherwise copy each layer out of its stack, at every call.
    """

    def layers(stack: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], ...]:
        count = len(next(iter(stack.values())))
        return tuple({name: x[i] for name, x in stack.items()} for i in range(count))

    return {name: layers(x) if isinstance(x, dict) else x for name, x in params.items()}


def shapes(policy: Policy) -> Any:
    """A tree like the sampler's parameters of `jax.ShapeDtypeStruct`."""
    return jax.eval_shape(lambda p: unstack(narrow(policy, p)), policy.shapes())


def group_mesh(devices: Sequence[Any], tensor: int) -> Mesh:
    """Groups of `tensor` devices of one process as a mesh with the learner's axis names.

    Parameters are whole in each group. Groups follow the devices' numbers, so that every process
    knows how the others form theirs.

    Raises:
      ValueError: the devices of a process do not form groups.
    """
    ordered = sorted(devices, key=lambda d: (d.process_index, d.id))
    for process in {d.process_index for d in ordered}:
        count = sum(d.process_index == process for d in ordered)
        if count % tensor:
            raise ValueError(
                f"sampler.tensor = {tensor} devices share the sampler's parameters, but a process "
                f"here has {count}, which do not divide into such groups; set sampler.tensor to a "
                f"divisor of {count}")
    return Mesh(np.array(ordered).reshape(-1, 1, tensor), mesh_lib.AXES,
                axis_types=(AxisType.Auto,) * len(mesh_lib.AXES))


def params_at(policy: Policy, mesh: Mesh) -> Any:
    """The sharding of each parameter of `shapes` over a mesh of `group_mesh`."""
    at = _stacked_at(policy, mesh)
    layer = jax.tree.map(lambda s: NamedSharding(mesh, PartitionSpec(*s.spec[1:])), at)
    counts = {name: len(x) for name, x in shapes(policy).items() if isinstance(x, tuple)}
    return {name: (layer[name],) * counts[name] if name in counts else s
            for name, s in at.items()}


def _stacked_at(policy: Policy, mesh: Mesh) -> Any:
    return mesh_lib.shardings(mesh, policy.logical_axes(), policy.shapes())


def lower_reshard(policy: Policy, mesh: Mesh, tensor: int) -> jax.stages.Lowered:
    """The program of `Reshard` for abstract parameters of a learner.

    Groups are formed in the order of the mesh: where that is not the order of the devices' numbers,
    `Reshard` moves the same bytes by a second program.

    Args:
      policy: the pure functions.
      mesh: of the learner.
      tensor: devices that share a copy.
    """
    source = _stacked_at(policy, mesh)
    groups = Mesh(mesh.devices.reshape(-1, 1, tensor), mesh_lib.AXES, axis_types=mesh.axis_types)
    return _jit(policy, source, groups).lower(mesh_lib.abstract(policy.shapes(), source))


def _jit(policy: Policy, source: Any, mesh: Mesh) -> Any:
    """The program from stacks as `source` says to the sampler's over the mesh of groups."""
    constrain = jax.lax.with_sharding_constraint
    target = _stacked_at(policy, mesh)

    def move(params: Params) -> Params:
        # Narrow before anything is sent: left alone the compiler may send float32.
        narrowed = constrain(narrow(policy, params), source)
        between = jax.tree.map(_between, source, target, policy.shapes())
        return unstack(constrain(constrain(narrowed, between), target))

    return jax.jit(move, out_shardings=params_at(policy, mesh))


def _between(source: Any, target: Any, shape: jax.ShapeDtypeStruct) -> Any:
    """A stop on the way: heads and features are in their place, the rest is still divided.

    From there a group gathers from the others. Without it the compiler makes every parameter whole
    on every device before it takes the group's part.
    """
    if source == target or target.mesh.shape["tensor"] == 1:
        return source
    groups = target.mesh.shape["data"]
    parts = [*source.spec, *[None] * (len(shape.shape) - len(source.spec))]

    def one(part: str | None, goal: str | None, size: int) -> str | None:
        if goal == "tensor":
            return goal
        divided = part is not None and source.mesh.shape[part] > 1
        return "data" if divided and size % groups == 0 else None

    spec = [one(*each) for each in zip(parts, target.spec, shape.shape, strict=True)]
    if spec.count("data") > 1:
        return source
    return NamedSharding(target.mesh, PartitionSpec(*spec))


def _devices(sharding: jax.sharding.Sharding) -> list[Any]:
    if isinstance(sharding, NamedSharding):
        return list(sharding.mesh.devices.flat)
    return sorted(sharding.device_set, key=lambda d: d.id)


def _local_view(x: jax.Array, at: NamedSharding) -> jax.Array:
    """This process's shards of a global array as an array of its own."""
    shards = {shard.device: shard.data for shard in x.addressable_shards}
    return jax.make_array_from_single_device_arrays(
        x.shape, at, [shards[device] for device in at.mesh.devices.flat])
