"""Forward and backward passes over the micro-batches of a batch, as pure functions.

One micro-batch is in work at a time, and its logits exist by blocks of the vocabulary only, so that
memory does not grow with the number of tokens of an update.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rime_jax.learner import batch as batch_lib
from rime_jax.learner import loss as loss_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy import base


class Passes:
    """What the programs of a learner do with parameters and a batch; to be traced."""

    def __init__(self, policy: base.Policy, config: Any, mesh: Mesh, params_at: Any):
        """Args:
          policy: the pure functions.
          config: the `learner` part of a config.
          mesh: from `mesh.make_mesh`.
          params_at: the sharding of each parameter over it.
        """
        self._policy, self._config, self._mesh, self._params_at = policy, config, mesh, params_at
        rows = config.microbatch_rows // mesh_lib.row_shards(mesh)
        self._block = loss_lib.head_block(rows * config.row_tokens, policy.vocab_size)

    def gradient(
        self,
        params: base.Params,
        batch: batch_lib.Batch,
        old: jax.Array | None,
        reference: jax.Array | base.Params | None,
    ) -> tuple[base.Params, loss_lib.Terms]:
        """Sums over the micro-batches in use: the gradient of the loss sum, float32, and the terms.

        Args:
          params: to differentiate by.
          batch: arrays [M, R, L].
          old: [M, R, L], see `loss.objective`.
          reference: [M, R, L], log-probabilities of the initial policy; or its parameters; or None.
        """
        def one(i: jax.Array) -> tuple[base.Params, loss_lib.Terms]:
            # Outside of what is differentiated: nothing of the reference's pass is kept for it.
            micro, before = _micro(batch, i), _micro(old, i)
            anchor = self._anchor(reference, micro, i)
            gradient, terms = jax.grad(self._loss, has_aux=True)(params, micro, before, anchor)
            return self._placed(jax.tree.map(lambda g: g.astype(jnp.float32), gradient)), terms

        def add(i: jax.Array, total: tuple) -> tuple:
            gradient, terms = one(i)
            return jax.tree.map(jnp.add, total[0], gradient), loss_lib.add_terms(total[1], terms)

        gradient, terms = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                                       jax.eval_shape(one, jax.ShapeDtypeStruct((), jnp.int32)))
        return jax.lax.fori_loop(0, batch.n_micro, add, (self._placed(gradient), terms))

    def logprobs(self, params: base.Params, batch: batch_lib.Batch) -> jax.Array:
        """Log-probability of every token, float32 [M, R, L]; 0 in micro-batches not in use."""
        def fill(i: jax.Array, out: jax.Array) -> jax.Array:
            logprobs, _ = self._forward(params, _micro(batch, i))
            return jax.lax.dynamic_update_index_in_dim(out, logprobs, i, 0)

        return jax.lax.fori_loop(0, batch.n_micro, fill, jnp.zeros(batch.tokens.shape, jnp.float32))

    def _placed(self, gradient: base.Params) -> base.Params:
        return jax.lax.with_sharding_constraint(gradient, self._params_at)

    def _anchor(self, reference: Any, micro: batch_lib.Batch, i: jax.Array) -> jax.Array | None:
        """The initial policy's log-probabilities [R, L] of a micro-batch."""
        if reference is None or isinstance(reference, jax.Array):
            return _micro(reference, i)
        return self._forward(reference, micro)[0]

    def _loss(
        self,
        params: base.Params,
        micro: batch_lib.Batch,
        old: jax.Array | None,
        reference: jax.Array | None,
    ) -> tuple[jax.Array, loss_lib.Terms]:
        logprobs, entropy = self._forward(params, micro)
        return loss_lib.objective(logprobs, entropy, micro, old, reference, self._config)

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

        By hand, so that each block of the head is gathered, and its gradient reduced, by itself:
        the whole head is never on a device, nor is a gradient of its size.
        """
        axes = self._policy.logical_axes()
        names = [n for n, axis in axes.items() if isinstance(axis, tuple) and "vocab" in axis]
        rows = mesh_lib.hidden_sharding(self._mesh).spec
        at = {name: mesh_lib.rows_part(self._params_at[name].spec) for name in names}

        # XLA's CPU compiler ends the process over a narrow reduction in a program of which only a
        # part is by hand.
        wire = jnp.float32 if mesh_lib.platform(self._mesh) == "cpu" else self._policy.dtype

        def local(head: base.Params, hidden: jax.Array, tokens: jax.Array) -> tuple:
            def logits(block: base.Params, hidden: jax.Array) -> jax.Array:
                gathered = {name: mesh_lib.gather_rows_part(x, at[name])
                            for name, x in block.items()}
                return self._policy.logits(gathered, hidden)

            narrow = {name: x.astype(wire) for name, x in head.items()}
            return loss_lib.token_logprobs(logits, narrow, hidden, tokens, self._policy.vocab_size,
                                           self._block)

        own = {name: params[name] for name in names}
        if mesh_lib.row_shards(self._mesh) == 1:
            # There is nothing to gather, and the compiler refuses reductions over no axis.
            return loss_lib.token_logprobs(self._policy.logits, own, hidden, tokens,
                                           self._policy.vocab_size, self._block)
        return jax.shard_map(
            local, mesh=self._mesh, axis_names=set(mesh_lib.ROWS), check_vma=False,
            in_specs=(at, rows, PartitionSpec(*rows[:2])),
            out_specs=(PartitionSpec(*rows[:2]),) * 2,
        )(own, hidden, tokens)


def _micro(data: Any, i: jax.Array) -> Any:
    """Micro-batch i: arrays [R, L] out of [M, R, L]."""
    return jax.tree.map(
        lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False) if x.ndim == 3 else x, data)
