"""The optimiser update: one sharded program from (parameters, batch) to new parameters."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from rime_jax.learner import batch as batch_lib
from rime_jax.learner import loss as loss_lib
from rime_jax.learner import mesh as mesh_lib
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
    """

    def __init__(self, policy: base.Policy, config: Any, mesh: Mesh):
        """`config` is a whole, valid config.

        Raises:
          ValueError: learner.microbatch_rows cannot be divided over the mesh.
        """
        shards = mesh_lib.row_shards(mesh)
        if config.learner.microbatch_rows % shards:
            raise ValueError(
                f"learner.microbatch_rows = {config.learner.microbatch_rows} is no multiple of the"
                f" {shards} devices that share the rows (learner.mesh_data x learner.mesh_fsdp);"
                " make it one"
            )
        self._policy, self._config, self._mesh = policy, config.learner, mesh
        self._trained = tuple(config.roles.train)
        self._chunk = loss_lib.head_chunk(config.learner.microbatch_rows // shards,
                                          config.learner.row_tokens, policy.vocab_size)
        self._schedule = learning_rate(config.learner)
        self._optimizer = _optimizer(config.learner, self._schedule)
        self._shapes = jax.eval_shape(policy.init, jax.random.key(0))
        self.params_at = mesh_lib.shardings(mesh, policy.logical_axes(), self._shapes)
        self._opt_at = optax.tree_utils.tree_map_params(
            self._optimizer, lambda _, at: at, jax.eval_shape(self._optimizer.init, self._shapes),
            self.params_at, transform_non_params=lambda _: mesh_lib.replicated(mesh))
        self._batch_at = batch_lib.Batch(*[mesh_lib.batch_sharding(mesh)] * 7,
                                         n_micro=mesh_lib.replicated(mesh))
        everywhere = mesh_lib.replicated(mesh)
        self._copy = jax.jit(functools.partial(jax.tree.map, jnp.copy),
                             out_shardings=self.params_at)
        self._init_opt = jax.jit(self._optimizer.init, out_shardings=self._opt_at)
        options = mesh_lib.compiler_options(mesh)
        self._update = jax.jit(
            self._update_program, donate_argnums=(0, 1, 2), compiler_options=options,
            out_shardings=(self.params_at, self._opt_at, everywhere, everywhere))
        self._logprobs = jax.jit(self._logprobs_program, compiler_options=options,
                                 out_shardings=mesh_lib.batch_sharding(mesh))
        self._merge = jax.jit(_merge_terms)

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
            updates={name: jax.device_put(jnp.int32(0), mesh_lib.replicated(self._mesh))
                     for name in self._trained},
        )

    def place(self, params: base.Params) -> base.Params:
        """A copy of parameters, sharded over the mesh."""
        return self._copy(jax.device_put(params, self.params_at))

    def step(
        self,
        state: LearnerState,
        batches: Mapping[str, Sequence[batch_lib.Batch]],
        reference_params: base.Params | None = None,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One update per mini-batch of each trained set; returns before the devices are done.

        Args:
          state: consumed.
          batches: trained set name → mini-batches; an empty list changes nothing.
          reference_params: the initial policy. With it the KL to it is logged, and is part of the
            loss where learner.kl_coef > 0.

        Returns:
          The new state, and metrics `<set>/<name>`: means over the mini-batches' trained tokens
          (nan where there is none), maxima, `grad_norm`, `skipped` (share of the updates left out
          because loss or gradient was not finite, or nothing had weight), `lr`. A set without a
          mini-batch has no metrics.

        Raises:
          ValueError: learner.kl_coef > 0 and there is no reference.
        """
        if self._config.kl_coef > 0 and reference_params is None:
            raise ValueError("learner.kl_coef > 0 needs reference_params: the initial policy")
        params, opt_state = dict(state.params), dict(state.opt_state)
        updates, metrics = dict(state.updates), {}
        for name in self._trained:
            placed = [jax.device_put(batch, self._batch_at) for batch in batches[name]]
            old = [self._logprobs(params[name], batch)
                   if self._config.old_logprobs == "learner" else None for batch in placed]
            terms = []
            for batch, before in zip(placed, old, strict=True):
                reference = (None if reference_params is None
                             else self._logprobs(reference_params, batch))
                params[name], opt_state[name], updates[name], found = self._update(
                    params[name], opt_state[name], updates[name], batch, before, reference)
                terms.append(found)
            if terms:
                merged = self._merge(terms)
                metrics.update({f"{name}/{key}": value for key, value in merged.items()})
        return LearnerState(params, opt_state, updates), metrics

    def logprobs(self, params: base.Params, batch: batch_lib.Batch) -> jax.Array:
        """Log-probability of every token [M, R, L]; only entries with a weight mean anything."""
        return self._logprobs(params, jax.device_put(batch, self._batch_at))

    def lower_update(self, micro_batches: int) -> jax.stages.Lowered:
        """The update program for abstract arguments, to be compiled without data or devices.

        Args:
          micro_batches: M of the batch.
        """
        batch, given = self._abstract_batch(micro_batches)
        opt_shapes = jax.eval_shape(self._optimizer.init, self._shapes)
        count = jax.ShapeDtypeStruct((), jnp.int32, sharding=mesh_lib.replicated(self._mesh))
        return self._update.lower(
            mesh_lib.abstract(self._shapes, self.params_at),
            mesh_lib.abstract(opt_shapes, self._opt_at), count, batch,
            given if self._config.old_logprobs == "learner" else None,
            given if self._config.kl_coef > 0 else None)

    def lower_logprobs(self, micro_batches: int) -> jax.stages.Lowered:
        """The program of `logprobs`, also of the reference, likewise."""
        batch, _ = self._abstract_batch(micro_batches)
        return self._logprobs.lower(mesh_lib.abstract(self._shapes, self.params_at), batch)

    def _abstract_batch(self, micro_batches: int) -> tuple[batch_lib.Batch, Any]:
        """A batch, and log-probabilities for it."""
        size = (micro_batches, self._config.microbatch_rows, self._config.row_tokens)
        batch = batch_lib.Batch(
            *[jax.ShapeDtypeStruct(size, jnp.int32)] * 3, jax.ShapeDtypeStruct(size, jnp.int8),
            *[jax.ShapeDtypeStruct(size, jnp.float32)] * 3,
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
        reference: jax.Array | None,
    ) -> tuple[base.Params, Any, jax.Array, loss_lib.Terms]:
        gradient, terms = self._accumulate(params, (batch, old, reference), batch.n_micro)
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

    def _accumulate(
        self, params: base.Params, data: Any, n_micro: jax.Array
    ) -> tuple[base.Params, loss_lib.Terms]:
        """Gradient sum and terms over the micro-batches in use."""

        def one(i: jax.Array) -> tuple[base.Params, loss_lib.Terms]:
            gradient, terms = jax.grad(self._micro_loss, has_aux=True)(params, *_micro(data, i))
            gradient = jax.tree.map(lambda g: g.astype(jnp.float32), gradient)
            return jax.lax.with_sharding_constraint(gradient, self.params_at), terms

        def add(i: jax.Array, total: tuple) -> tuple:
            gradient, terms = one(i)
            return (jax.tree.map(jnp.add, total[0], gradient), _add_terms(total[1], terms))

        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                            jax.eval_shape(one, jax.ShapeDtypeStruct((), jnp.int32)))
        return jax.lax.fori_loop(0, n_micro, add, zero)

    def _micro_loss(
        self,
        params: base.Params,
        micro: batch_lib.Batch,
        old: jax.Array | None,
        reference: jax.Array | None,
    ) -> tuple[jax.Array, loss_lib.Terms]:
        logprobs, entropy = self._forward(params, micro)
        return loss_lib.objective(logprobs, entropy, micro, old, reference, self._config)

    def _logprobs_program(self, params: base.Params, batch: batch_lib.Batch) -> jax.Array:
        def fill(i: jax.Array, out: jax.Array) -> jax.Array:
            logprobs, _ = self._forward(params, _micro(batch, i))
            return jax.lax.dynamic_update_index_in_dim(out, logprobs, i, 0)

        return jax.lax.fori_loop(0, batch.n_micro, fill, jnp.zeros(batch.tokens.shape, jnp.float32))

    def _forward(
        self, params: base.Params, micro: batch_lib.Batch
    ) -> tuple[jax.Array, jax.Array]:
        # A fused attention kernel has to be spread over the mesh by hand, so it must know it.
        with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
            hidden = self._policy.forward(params, micro.tokens, micro.positions, micro.segments)
        # Without it the compiler may spread the features over fsdp and gather the activations.
        hidden = jax.lax.with_sharding_constraint(hidden, mesh_lib.hidden_sharding(self._mesh))
        return self._token_logprobs(params, hidden, micro.tokens)

    def _token_logprobs(
        self, params: base.Params, hidden: jax.Array, tokens: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """`loss.token_logprobs`, each device for its rows.

        By hand, so that the head is gathered once and its gradient reduced once per micro-batch.
        The compiler would do both for each chunk of the logits.
        """
        axes = self._policy.logical_axes()
        names = [name for name, own in axes.items() if isinstance(own, tuple) and "vocab" in own]
        rows = mesh_lib.hidden_sharding(self._mesh).spec
        at = {name: mesh_lib.rows_part(self.params_at[name].spec) for name in names}

        def local(head: base.Params, hidden: jax.Array, tokens: jax.Array) -> tuple:
            # Narrow on the wires, but wide where the chunks' gradients are summed.
            whole = {name: mesh_lib.gather_rows_part(x.astype(self._policy.dtype), at[name])
                     .astype(x.dtype) for name, x in head.items()}
            return loss_lib.token_logprobs(lambda h: self._policy.logits(whole, h), hidden, tokens,
                                           self._chunk)

        return jax.shard_map(
            local, mesh=self._mesh, axis_names=set(mesh_lib.ROWS), check_vma=False,
            in_specs=(at, rows, mesh_lib.PartitionSpec(*rows[:2])),
            out_specs=(mesh_lib.PartitionSpec(*rows[:2]),) * 2,
        )({name: params[name] for name in names}, hidden, tokens)


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


def _micro(data: Any, i: jax.Array) -> Any:
    """Micro-batch i: arrays [R, L] out of [M, R, L]."""
    return jax.tree.map(
        lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False) if x.ndim == 3 else x, data)


def _add_terms(a: loss_lib.Terms, b: loss_lib.Terms) -> loss_lib.Terms:
    return loss_lib.Terms(jax.tree.map(jnp.add, a.pairs, b.pairs),
                          jax.tree.map(jnp.maximum, a.maxima, b.maxima))


def _merge_terms(terms: Sequence[loss_lib.Terms]) -> dict[str, jax.Array]:
    """The metrics of an iteration from the terms of its mini-batches."""
    total = functools.reduce(_add_terms, terms)
    found = {name: pair[0] / pair[1] for name, pair in total.pairs.items()} | total.maxima
    first = terms[0]
    for name in FIRST_ONLY:
        found[name] = (first.maxima[name] if name in first.maxima
                       else first.pairs[name][0] / first.pairs[name][1])
    return found
