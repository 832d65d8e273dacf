"""The native sampler's device program as a pure function, and where its arrays lie.

It can be compiled for devices that are not there (rime_jax.aot): nothing here holds an array.

Dimensions: N slots, C tokens of a chunk, D model, V vocabulary.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy.base import Params, Policy


class SamplerProgram:
    """Feeds every slot a chunk of its prompt, then samples until all slots have stopped.

    The devices form groups of `tensor`. A group has a whole copy of the parameters, its heads and
    features divided among its devices, and decodes its own slots without waiting for other groups.

    Attributes:
      params_at: the sharding of each parameter.
      cache_at: the sharding of each array of the cache.
      by_slot: of what has one row per slot.
      step: jitted (params, cache, tokens [N, C], start [N], count [N], budget [N], keys [N, 2],
        temperature [N]) → (cache, ids [N, block], log-probabilities [N, block], lengths [N]); the
        cache is consumed.
      empty_cache: jitted () → cache.
      narrow: jitted params → a copy in the dtype that the policy computes with.
      traces: programs traced so far.
    """

    def __init__(
        self,
        policy: Policy,
        stop_ids: Sequence[int],
        *,
        slots: int,
        context_tokens: int,
        block: int,
        devices: Sequence[Any],
        tensor: int = 1,
    ):
        """Args as for `NativeSampler`; block: most tokens per call.

        Raises:
          ValueError: the devices do not form groups, or the slots cannot be spread over them.
        """
        if len(devices) % tensor:
            raise ValueError(
                f"{len(devices)} local devices cannot form groups of {tensor} that share the "
                "sampler's parameters; choose a divisor")
        groups = len(devices) // tensor
        if slots % groups:
            raise ValueError(
                f"sampler.slots = {slots} cannot be spread evenly over {groups} "
                f"{'devices' if tensor == 1 else 'groups of devices'}; make it a multiple")
        self._policy, self._block = policy, block
        self._stop_ids = np.array(tuple(stop_ids), np.int32)
        self.slots, self.context_tokens = slots, context_tokens
        # The learner's axis names, so that its table of rules places the parameters.
        self.mesh = Mesh(np.array(devices).reshape(groups, 1, tensor), mesh_lib.AXES,
                         axis_types=(AxisType.Auto,) * 3)
        self.params_at = mesh_lib.shardings(self.mesh, policy.logical_axes(), policy.shapes())
        self.by_slot = NamedSharding(self.mesh, P("data"))
        self.traces = 0
        make_cache = functools.partial(policy.init_cache, slots, context_tokens)
        self.cache_at = jax.tree.map(self._cache_sharding, jax.eval_shape(make_cache))
        self.empty_cache = jax.jit(make_cache, out_shardings=self.cache_at)
        self.step = jax.jit(self._spread(), donate_argnums=1, out_shardings=(
            self.cache_at, *[self.by_slot] * 3))
        self.narrow = jax.jit(functools.partial(narrow, policy))

    def lower_step(self, chunk: int) -> jax.stages.Lowered:
        """`step` for abstract arguments with C = `chunk`."""
        N = self.slots

        def rows(dtype: Any, *more: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((N, *more), dtype, sharding=self.by_slot)

        params = jax.eval_shape(functools.partial(narrow, self._policy), self._policy.shapes())
        cache = jax.eval_shape(lambda: self._policy.init_cache(N, self.context_tokens))
        return self.step.lower(
            mesh_lib.abstract(params, self.params_at), mesh_lib.abstract(cache, self.cache_at),
            rows(jnp.int32, chunk), rows(jnp.int32), rows(jnp.int32), rows(jnp.int32),
            rows(jnp.uint32, 2), rows(jnp.float32))

    def _cache_sharding(self, x: jax.ShapeDtypeStruct) -> NamedSharding:
        # Arrays with four axes have their heads on the second one (policy.init_cache).
        heads = x.ndim == 4 and x.shape[1] % self.mesh.shape["tensor"] == 0
        return NamedSharding(self.mesh, P("data", "tensor") if heads else P("data"))

    def _spread(self) -> Callable:
        """`_step` with each group by itself; what happens inside a group is the compiler's."""
        slots = P("data")
        return jax.shard_map(
            self._step, mesh=self.mesh, axis_names={"data"}, in_specs=(P(), *[slots] * 7),
            out_specs=(slots,) * 4, check_vma=False)

    def _step(self, params, cache, tokens, start, count, budget, keys, temperature):
        self.traces += 1
        policy, block, stop_ids = self._policy, self._block, self._stop_ids
        N = tokens.shape[0]
        hidden, cache = policy.extend(params, cache, tokens, start, count)
        last = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], 1)[:, 0]

        def draw(last_NxD, position_N):
            logits = policy.logits(params, last_NxD)
            token = _sample(logits, keys, position_N, temperature)
            logp = jax.nn.log_softmax(logits)
            return token, jnp.take_along_axis(logp, token[:, None], 1)[:, 0]

        def record(state, token, logp):
            i, active, out_ids, out_logp, length = state
            out_ids = out_ids.at[:, i].set(jnp.where(active, token, 0))
            out_logp = out_logp.at[:, i].set(jnp.where(active, logp, 0.0))
            length = length + active
            stopped = (token[:, None] == stop_ids[None]).any(1)
            return i + 1, active & ~stopped & (i + 1 < budget), out_ids, out_logp, length

        position = start + count
        token, logp = draw(last, position)
        state = (
            jnp.int32(0), budget > 0, jnp.zeros((N, block), jnp.int32),
            jnp.zeros((N, block), jnp.float32), jnp.zeros(N, jnp.int32),
        )
        state = record(state, token, logp)

        def body(carry):
            cache, token, position, state = carry
            active = state[1]
            hidden, cache = policy.extend(
                params, cache, token[:, None], position, active.astype(jnp.int32)
            )
            position = position + active
            token, logp = draw(hidden[:, 0], position)
            return cache, token, position, record(state, token, logp)

        cache, _, _, state = jax.lax.while_loop(
            lambda carry: carry[3][1].any(), body, (cache, token, position, state)
        )
        return cache, state[2], state[3], state[4]


def narrow(policy: Policy, params: Params) -> Params:
    """A copy of parameters with the matrices in the dtype of the policy's activations.

    The policies cast a matrix before each use, so that nothing they compute changes. Norms and the
    like stay as they are: some are used in float32.
    """

    def one(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        matrix = sum(axis != "layers" for axis in axes) > 1
        return jnp.copy(x.astype(policy.dtype) if matrix else x)

    return jax.tree.map(one, params, policy.logical_axes())


def lower_reshard(policy: Policy, mesh: Mesh, tensor: int) -> jax.stages.Lowered:
    """One program from the learner's layout to copies for samplers on the same devices.

    Args:
      policy: the pure functions.
      mesh: of the learner.
      tensor: devices that share a copy.
    """
    target = SamplerProgram(policy, (), slots=mesh.size // tensor, context_tokens=1, block=1,
                            devices=list(mesh.devices.flat), tensor=tensor).params_at
    given = mesh_lib.abstract(
        policy.shapes(), mesh_lib.shardings(mesh, policy.logical_axes(), policy.shapes()))
    return jax.jit(functools.partial(narrow, policy), out_shardings=target).lower(given)


def _sample(
    logits_NxV: jax.Array, keys_Nx2: jax.Array, position_N: jax.Array, temperature_N: jax.Array
) -> jax.Array:
    """One id per row by the Gumbel-max rule; the most likely one where the temperature is 0."""

    def gumbel(key, position):
        key = jax.random.fold_in(jax.random.wrap_key_data(key), position)
        return jax.random.gumbel(key, logits_NxV.shape[1:])

    noise = jax.vmap(gumbel)(keys_Nx2, position_N)
    return jnp.argmax(logits_NxV + temperature_N[:, None] * noise, -1).astype(jnp.int32)
