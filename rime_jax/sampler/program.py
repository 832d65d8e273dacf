"""The native sampler's device program as a pure function, and where its arrays lie.

It can be compiled for devices that are not there (rime_jax.aot): nothing here holds an array.

Dimensions: N slots, R rows of a call, C tokens of a chunk, D model, V vocabulary.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy.base import Policy
from rime_jax.sampler.reshard import group_mesh, params_at, shapes

# Calls that serve a few slots have a row for every this many slots.
_FEW = 8


class SamplerProgram:
    """Feeds slots a chunk of their prompts, then samples until all of them have stopped.

    The devices form groups of `tensor`. A group has a whole copy of the parameters, its heads and
    features divided among its devices, and decodes its own slots without waiting for other groups.

    Attributes:
      params_at: the sharding of each parameter.
      cache_at: the sharding of each array of the cache.
      by_slot: of what has one row per slot.
      few: rows of each group in a call that serves a few slots only; 0: no such calls.
      step: jitted (params, cache, rows, tokens [R, C], start [R], count [R], budget [R],
        keys [R, 2], temperature [R], allowed [R, A] or none) → (cache, ids [R, block],
        log-probabilities [R, block], lengths [R]); the cache is consumed. rows: int32 [R], for each
        row the number of its slot within its group, R / groups rows of each group in turn
        (policy/base.py, `extend`); None: all slots. allowed: ids that a row samples among; all -1:
        among all.
      copy: jitted (cache, from [groups × F], to [groups × F]) → (cache,), F = max(1, few): slots
        copied within each group by their numbers there; the cache is consumed. A `to` that is no
        slot copies nothing.
      empty_cache: jitted () → cache.
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
        self.mesh = group_mesh(devices, tensor)
        groups = self.mesh.shape["data"]
        if slots % groups:
            raise ValueError(
                f"sampler.slots = {slots} cannot be spread evenly over {groups} "
                f"{'devices' if tensor == 1 else 'groups of devices'}; make it a multiple")
        self._policy, self._block = policy, block
        self._stop_ids = np.array(tuple(stop_ids), np.int32)
        self.slots, self.context_tokens = slots, context_tokens
        self.groups = groups
        self.few = slots // groups // _FEW
        self.params_at = params_at(policy, self.mesh)
        self.by_slot = NamedSharding(self.mesh, P("data"))
        self.traces = 0
        make_cache = functools.partial(policy.init_cache, slots, context_tokens)
        self.cache_at = jax.tree.map(self._cache_sharding, jax.eval_shape(make_cache))
        self.empty_cache = jax.jit(make_cache, out_shardings=self.cache_at)
        self.step = jax.jit(self._each_group(self._step, 1, 3), donate_argnums=1, out_shardings=(
            self.cache_at, *[self.by_slot] * 3))
        self.copy = jax.jit(self._each_group(_copy, 0, 0), donate_argnums=0,
                            out_shardings=(self.cache_at,))

    def lower_step(self, chunk: int) -> jax.stages.Lowered:
        """`step` for abstract arguments with C = `chunk`."""
        N = self.slots

        def rows(dtype: Any, *more: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((N, *more), dtype, sharding=self.by_slot)

        cache = jax.eval_shape(lambda: self._policy.init_cache(N, self.context_tokens))
        return self.step.lower(
            mesh_lib.abstract(shapes(self._policy), self.params_at),
            mesh_lib.abstract(cache, self.cache_at), None, rows(jnp.int32, chunk),
            rows(jnp.int32), rows(jnp.int32), rows(jnp.int32), rows(jnp.uint32, 2),
            rows(jnp.float32))

    def _cache_sharding(self, x: jax.ShapeDtypeStruct) -> NamedSharding:
        # Arrays with four axes have their heads on the second one, those with three on the last
        # (policy.init_cache).
        axis = {3: 2, 4: 1}.get(x.ndim)
        divided = axis is not None and x.shape[axis] % self.mesh.shape["tensor"] == 0
        return NamedSharding(self.mesh, P("data", *[None] * (axis - 1), "tensor") if divided
                             else P("data"))

    def _each_group(self, function: Callable, params: int, results: int) -> Callable:
        """A function for each group by itself; what happens inside a group is the compiler's.

        Args:
          function: (parameters where `params` is 1, cache, arrays …) → (cache, `results` arrays).
        """
        slots = P("data")

        def spread(*arguments: Any) -> Any:
            specs = (*[P()] * params, *[slots] * (len(arguments) - params))
            return jax.shard_map(
                function, mesh=self.mesh, axis_names={"data"}, check_vma=False, in_specs=specs,
                out_specs=(slots,) * (1 + results))(*arguments)

        return spread

    def _step(
        self, params, cache, rows, tokens, start, count, budget, keys, temperature, allowed=None
    ):
        self.traces += 1
        policy, block, stop_ids = self._policy, self._block, self._stop_ids
        N = tokens.shape[0]
        hidden, cache = policy.extend(params, cache, tokens, start, count, rows)
        last = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], 1)[:, 0]

        def draw(last_NxD, position_N):
            logits = policy.logits(params, last_NxD)
            token = _sample(logits, keys, position_N, temperature, allowed)
            chosen = jnp.take_along_axis(logits, token[:, None], 1)[:, 0]
            return token, chosen - jax.nn.logsumexp(logits, -1)

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
                params, cache, token[:, None], position, active.astype(jnp.int32), rows)
            position = position + active
            token, logp = draw(hidden[:, 0], position)
            return cache, token, position, record(state, token, logp)

        cache, _, _, state = jax.lax.while_loop(
            lambda carry: carry[3][1].any(), body, (cache, token, position, state)
        )
        return cache, state[2], state[3], state[4]


def _copy(cache: Any, source: jax.Array, target: jax.Array) -> tuple[Any]:
    return (jax.tree.map(lambda a: a.at[target].set(
        a.at[source].get(mode="clip"), mode="drop", unique_indices=True), cache),)


def _sample(
    logits_NxV: jax.Array, keys_Nx2: jax.Array, position_N: jax.Array, temperature_N: jax.Array,
    allowed_NxA: jax.Array | None,
) -> jax.Array:
    """One id per row by the Gumbel-max rule; the most likely one where the temperature is 0."""

    def gumbel(key, position):
        key = jax.random.fold_in(jax.random.wrap_key_data(key), position)
        return jax.random.gumbel(key, logits_NxV.shape[1:])

    noise = jax.vmap(gumbel)(keys_Nx2, position_N)
    scores_NxV = logits_NxV + temperature_N[:, None] * noise
    token_N = jnp.argmax(scores_NxV, -1).astype(jnp.int32)
    if allowed_NxA is None:
        return token_N
    own_NxA = jnp.take_along_axis(scores_NxV, jnp.maximum(allowed_NxA, 0), 1)
    best_N = jnp.argmax(jnp.where(allowed_NxA >= 0, own_NxA, -jnp.inf), -1)
    among_N = jnp.take_along_axis(allowed_NxA, best_N[:, None], 1)[:, 0]
    return jnp.where(allowed_NxA[:, 0] >= 0, among_N, token_N)
