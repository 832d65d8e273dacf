"""The optimiser update: one sharded program from (parameters, batch) to new parameters."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh

from rime_jax.learner import batch as batch_lib
from rime_jax.learner import loss as loss_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import passes
from rime_jax.policy import base

# How far the sampler's log-probabilities are from the learner's is known only while both have the
# same parameters: in the first mini-batch of an iteration.
FIRST_ONLY = ("logprob_gap", "logprob_gap_max")


@struct.dataclass
class LearnerState:
    """Everything an update changes. `step` consumes its buffers.

    Attributes:
      params: parameter set name → tree of parameters.
      opt_state: trained set name → optimiser state.
      updates: trained set name → int32, updates applied.
    """

    params: dict[str, base.Params]
    opt_state: dict[str, Any]
    updates: dict[str, jax.Array]


class Learner:
    """The compiled programs of one (policy, config, mesh); it has no state of its own.

    Attributes:
      params_at: the sharding of each parameter.
      local_rows: rows of a micro-batch that this process brings.
    """

    def __init__(self, policy: base.Policy, config: Any, mesh: Mesh):
        """`config` is a whole, valid config.

        Raises:
          ValueError: learner.microbatch_rows cannot be divided over the mesh or the processes.
        """
        shards, hosts = mesh_lib.row_shards(mesh), mesh_lib.processes(mesh)
        for parts, who in ((shards, "devices that share the rows (learner.mesh_data x"
                                    " learner.mesh_fsdp)"),
                           (hosts, "processes that each bring rows")):
            if config.learner.microbatch_rows % parts:
                raise ValueError(
                    f"learner.microbatch_rows = {config.learner.microbatch_rows} is no multiple of"
                    f" the {parts} {who}; make it one")
        self.local_rows = config.learner.microbatch_rows // hosts
        self._config, self._mesh = config.learner, mesh
        self._trained = tuple(config.roles.train)
        self._schedule = learning_rate(config.learner)
        self._optimizer = _optimizer(config.learner, self._schedule)
        self._shapes = jax.eval_shape(policy.init, jax.random.key(0))
        self._narrow_shapes = jax.eval_shape(functools.partial(base.narrow, policy), self._shapes)
        self.params_at = mesh_lib.shardings(mesh, policy.logical_axes(), self._shapes)
        self._opt_at = optax.tree_utils.tree_map_params(
            self._optimizer, lambda _, at: at, jax.eval_shape(self._optimizer.init, self._shapes),
            self.params_at, transform_non_params=lambda _: mesh_lib.replicated(mesh))
        rows = mesh_lib.batch_sharding(mesh)
        self._batch_at = batch_lib.Batch(rows, rows, rows, rows, rows, rows, rows,
                                         n_micro=mesh_lib.replicated(mesh))
        self._feed_at = mesh_lib.feed_sharding(mesh)
        self._make_programs(policy)

    def _make_programs(self, policy: base.Policy) -> None:
        everywhere = mesh_lib.replicated(self._mesh)
        options = mesh_lib.compiler_options(self._mesh)
        self._passes = passes.Passes(policy, self._config, self._mesh, self.params_at)
        self._copy = jax.jit(functools.partial(jax.tree.map, jnp.copy),
                             out_shardings=self.params_at)
        self._narrow = jax.jit(functools.partial(base.narrow, policy),
                               out_shardings=self.params_at)
        self._init_opt = jax.jit(self._optimizer.init, out_shardings=self._opt_at)
        self._update = jax.jit(
            self._update_program, donate_argnums=(0, 1, 2), compiler_options=options,
            out_shardings=(self.params_at, self._opt_at, everywhere, everywhere))
        self._logprobs = jax.jit(self._passes.logprobs, compiler_options=options,
                                 out_shardings=mesh_lib.batch_sharding(self._mesh))
        self._kl = jax.jit(self._mean_kl, out_shardings=everywhere)
        self._merge = jax.jit(_merge_terms, out_shardings=everywhere)

    def init(self, params: Mapping[str, base.Params]) -> LearnerState:
        """A state that starts from copies of the named parameter sets.

        Raises:
          ValueError: roles.train names a set that is not given.
        """
        return self.start({name: self.place(tree) for name, tree in params.items()})

    def start(self, params: Mapping[str, base.Params]) -> LearnerState:
        """A state that owns the named parameter sets: `step` consumes their buffers.

        Args:
          params: sharded as `params_at`, each set in arrays of its own.

        Raises:
          ValueError: roles.train names a set that is not given.
        """
        missing = [name for name in self._trained if name not in params]
        if missing:
            raise ValueError(f"roles.train holds {missing}, but the parameter sets are"
                             f" {sorted(params)}; give each trained set its parameters")
        return LearnerState(
            params=dict(params),
            opt_state={name: self._init_opt(params[name]) for name in self._trained},
            updates={name: mesh_lib.put(np.zeros((), np.int32), mesh_lib.replicated(self._mesh))
                     for name in self._trained},
        )

    def place(self, params: base.Params) -> base.Params:
        """A copy of parameters, sharded over the mesh; all processes must give the same."""
        return self._copy(jax.tree.map(mesh_lib.put, params, self.params_at))

    def reference(self, params: base.Params) -> base.Params:
        """A copy of the initial policy for `step` and `kl`.

        It is sharded like the trained parameters, but its matrices have the dtype of the
        activations; with learner.reference_memory = host it lies in pinned memory of the hosts.

        Args:
          params: as for `place`; not consumed.
        """
        narrow = self._narrow(jax.tree.map(mesh_lib.put, params, self.params_at))
        if self._config.reference_memory == "device":
            return narrow
        at = jax.tree.map(lambda s: s.with_memory_kind("pinned_host"), self.params_at)
        return jax.device_put(narrow, at)

    def step(
        self,
        state: LearnerState,
        batches: Mapping[str, Sequence[batch_lib.Batch]],
        reference: base.Params | None = None,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One update per mini-batch of each trained set; returns before the devices are done.

        Args:
          state: consumed.
          batches: trained set name → mini-batches; an empty list changes nothing. Arrays of a
            process are numpy [M, local_rows, L], with its own rows; the number of mini-batches, M
            and `n_micro` must be the same in all processes.
          reference: the initial policy, from `reference`. With it the KL to it is logged, and is
            part of the loss where learner.kl_coef > 0.

        Returns:
          The new state, and metrics `<set>/<name>`: means over the mini-batches' trained tokens
          (nan where there is none), maxima, `grad_norm`, `skipped` (share of the updates left out
          because loss or gradient was not finite, or nothing had weight), `lr`. A set without a
          mini-batch has no metrics. Every process can read them.

        Raises:
          ValueError: learner.kl_coef > 0 and there is no reference.
        """
        if self._config.kl_coef > 0 and reference is None:
            raise ValueError("learner.kl_coef > 0 needs the initial policy: give `reference`")
        params, opt_state = dict(state.params), dict(state.opt_state)
        updates, metrics = dict(state.updates), {}
        # What is not placed by hand here would cost a transfer in every iteration, unseen.
        with jax.transfer_guard("disallow"):
            for name, data in self._prepared(params, batches, reference).items():
                terms = []
                for batch, before, anchor in data:
                    params[name], opt_state[name], updates[name], found = self._update(
                        params[name], opt_state[name], updates[name], batch, before, anchor)
                    terms.append(found)
                if terms:
                    merged = self._merge(terms)
                    metrics.update({f"{name}/{key}": value for key, value in merged.items()})
        return LearnerState(params, opt_state, updates), metrics

    def _prepared(
        self, params: Mapping[str, base.Params],
        batches: Mapping[str, Sequence[batch_lib.Batch]], reference: base.Params | None,
    ) -> dict[str, list[tuple]]:
        """Trained set → (batch, old, reference) of each update, as the update program takes them.

        All before the first update, so that a reference from the hosts is gone by then.
        """
        if reference is not None:
            reference = self._on_devices(reference)
        prepared = {}
        for name in self._trained:
            prepared[name] = []
            for batch in map(self._place_batch, batches[name]):
                old = (self._logprobs(params[name], batch)
                       if self._config.old_logprobs == "learner" else None)
                separate = reference is not None and self._config.reference_pass == "separate"
                anchor = self._logprobs(reference, batch) if separate else reference
                prepared[name].append((batch, old, anchor))
        return prepared

    def logprobs(self, params: base.Params, batch: batch_lib.Batch) -> jax.Array:
        """Log-probability of every token [M, R, L]; only entries with a weight mean anything.

        Args:
          params: of one set.
          batch: as in `step`.
        """
        return self._logprobs(params, self._place_batch(batch))

    def kl(
        self, params: base.Params, reference: base.Params, batch: batch_lib.Batch
    ) -> jax.Array:
        """Mean over trained tokens of KL(params || reference), estimator k3; nan without any.

        Args:
          params: of one set.
          reference: from `reference`.
          batch: as in `step`.

        Returns:
          A scalar that every process can read.
        """
        placed = self._place_batch(batch)
        return self._kl(self._logprobs(params, placed),
                        self._logprobs(self._on_devices(reference), placed), placed.weights)

    def _on_devices(self, reference: base.Params) -> base.Params:
        return jax.device_put(reference, self.params_at)

    def _place_batch(self, batch: batch_lib.Batch) -> batch_lib.Batch:
        """The batch of all processes on the mesh, from the rows that each has."""
        def placed(x: np.ndarray, at: jax.sharding.NamedSharding) -> jax.Array:
            if x.ndim == 0:
                return mesh_lib.put(x, at)
            size = (x.shape[0], self._config.microbatch_rows, x.shape[2])
            fed = jax.make_array_from_process_local_data(self._feed_at, x, size)
            return jax.device_put(fed, at)

        # With several processes the guard takes this placement for an implicit one.
        with jax.transfer_guard("allow"):
            return jax.tree.map(placed, batch, self._batch_at)

    def lower_update(self, micro_batches: int) -> jax.stages.Lowered:
        """The update program for abstract arguments, to be compiled without data or devices.

        Args:
          micro_batches: M of the batch.
        """
        batch, given = self._abstract_batch(micro_batches)
        opt_shapes = jax.eval_shape(self._optimizer.init, self._shapes)
        count = jax.ShapeDtypeStruct((), jnp.int32, sharding=mesh_lib.replicated(self._mesh))
        within = self._config.reference_pass == "update"
        anchor = mesh_lib.abstract(self._narrow_shapes, self.params_at) if within else given
        return self._update.lower(
            mesh_lib.abstract(self._shapes, self.params_at),
            mesh_lib.abstract(opt_shapes, self._opt_at), count, batch,
            given if self._config.old_logprobs == "learner" else None,
            anchor if self._config.kl_coef > 0 else None)

    def lower_logprobs(self, micro_batches: int) -> jax.stages.Lowered:
        """The program of `logprobs`, likewise."""
        batch, _ = self._abstract_batch(micro_batches)
        return self._logprobs.lower(mesh_lib.abstract(self._shapes, self.params_at), batch)

    def lower_reference(self, micro_batches: int) -> jax.stages.Lowered:
        """The program of the reference's log-probabilities, likewise."""
        batch, _ = self._abstract_batch(micro_batches)
        return self._logprobs.lower(mesh_lib.abstract(self._narrow_shapes, self.params_at), batch)

    def _abstract_batch(self, micro_batches: int) -> tuple[batch_lib.Batch, Any]:
        """A batch, and log-probabilities for it."""
        size = (micro_batches, self._config.microbatch_rows, self._config.row_tokens)
        ids, roles, reals = (
            jax.ShapeDtypeStruct(size, dtype) for dtype in (jnp.int32, jnp.int8, jnp.float32))
        batch = batch_lib.Batch(ids, ids, ids, roles, reals, reals, reals,
                                n_micro=jax.ShapeDtypeStruct((), jnp.int32))
        given = jax.ShapeDtypeStruct(size, jnp.float32,
                                     sharding=mesh_lib.batch_sharding(self._mesh))
        return mesh_lib.abstract(batch, self._batch_at), given

    def _update_program(
        self,
        params: base.Params,
        opt_state: Any,
        updates: jax.Array,
        batch: batch_lib.Batch,
        old: jax.Array | None,
        reference: jax.Array | base.Params | None,
    ) -> tuple[base.Params, Any, jax.Array, loss_lib.Terms]:
        gradient, terms = self._passes.gradient(params, batch, old, reference)
        loss_sum, denominator = terms.pairs["loss"]
        gradient = jax.tree.map(lambda g: g / jnp.maximum(denominator, 1e-30), gradient)
        norm = optax.tree.norm(gradient)
        change, new_opt_state = self._optimizer.update(gradient, opt_state, params)
        # Also what the optimiser makes of it: a learning rate or a moment can be at fault.
        finite = (jnp.isfinite(loss_sum) & jnp.isfinite(norm)
                  & jnp.isfinite(optax.tree.norm(change)))
        good = finite & (denominator > 0)
        new_params = optax.apply_updates(params, change)

        def chosen(new: Any, kept: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, kept)

        one = jnp.float32(1)
        terms.pairs["grad_norm"] = (norm, one)
        terms.pairs["lr"] = (self._schedule(updates), one)
        terms.pairs["not_finite"] = (1 - finite.astype(jnp.float32), one)
        terms.pairs["skipped"] = (1 - good.astype(jnp.float32), one)
        return (chosen(new_params, params), chosen(new_opt_state, opt_state),
                updates + good.astype(jnp.int32), terms)

    def _mean_kl(
        self, logprobs: jax.Array, reference: jax.Array, weights: jax.Array
    ) -> jax.Array:
        trained = (weights > 0).astype(jnp.float32)
        each = loss_lib.kl(logprobs, reference, "k3", self._config.log_ratio_clamp)
        return loss_lib.masked_sum(each, trained) / trained.sum()


def learning_rate(config: Any) -> optax.Schedule:
    """Linear from lr / 10 to lr over warmup_updates, then constant."""
    if config.warmup_updates == 0:
        return optax.constant_schedule(config.lr)
    return optax.linear_schedule(config.lr / 10, config.lr, config.warmup_updates)


def _optimizer(config: Any, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(config.grad_clip),
        optax.adamw(schedule, b1=config.b1, b2=config.b2, eps=1e-8,
                    weight_decay=config.weight_decay),
    )


def _merge_terms(terms: Sequence[loss_lib.Terms]) -> dict[str, jax.Array]:
    """The metrics of an iteration from the terms of its mini-batches."""
    total = functools.reduce(loss_lib.add_terms, terms)
    found = {name: pair[0] / pair[1] for name, pair in total.pairs.items()} | total.maxima
    found["ratios"] = total.ratios
    first = terms[0]
    for name in FIRST_ONLY:
        found[name] = (first.maxima[name] if name in first.maxima
                       else first.pairs[name][0] / first.pairs[name][1])
    return found
