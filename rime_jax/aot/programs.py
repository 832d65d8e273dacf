"""The device programs of one iteration, lowered for a slice from abstract shapes.

They are the ones that training runs: built by `learner.update.Learner` and by
`sampler.program.SamplerProgram`, without weights and without devices.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import ml_collections

from rime_jax import config as config_lib
from rime_jax.aot import flops, hardware
from rime_jax.learner import loss, mesh, update
from rime_jax.policy import base, weights
from rime_jax.sampler import program as sampler_program
from rime_jax.sampler import reshard


@dataclasses.dataclass(frozen=True)
class Load:
    """How much one iteration has to do, an estimate: texts have no fixed length.

    Attributes:
      sequence_tokens: mean length of a conversation.
      generated_tokens: those of them that are sampled.
    """

    sequence_tokens: int
    generated_tokens: int


@dataclasses.dataclass(frozen=True)
class Program:
    """One program and what it is for.

    Attributes:
      lower: compiles nothing yet.
      loops: iterations of loops whose number only the data tell.
      model_flops, executed_flops: of one run on one device; the second with all that is computed
        again, in bfloat16 products.
      resident: bytes of a device that others hold while it runs.
      runs: how often it runs, one after another, in an iteration.
      per_loop: the figures are those of one iteration of the dynamic loop.
    """

    name: str
    lower: Callable[[], jax.stages.Lowered]
    loops: int
    model_flops: float
    executed_flops: float
    resident: int
    runs: float
    per_loop: bool = False


def make(
    config: ml_collections.ConfigDict, slice_: hardware.Slice, load: Load
) -> list[Program]:
    """The programs of a valid configuration.

    Args:
      config: whole; of the model in `model.path` only config.json is read.
      slice_: from `hardware.describe`.
      load: of an iteration.

    Raises:
      ConfigError: the configuration cannot run on the slice.
      ModelError: the model cannot be used.
    """
    try:
        return _make(config, slice_, load)
    except ValueError as error:
        if isinstance(error, weights.ModelError):
            raise
        raise config_lib.ConfigError(f"{slice_.name}: {error}") from error


def make_policy(config: ml_collections.ConfigDict) -> base.Policy:
    """The policy with the attention kernel that a TPU would choose."""
    model = config.model
    make = functools.partial(
        weights.make_policy, weights.resolve(model.path), model.dtype, model.remat)
    if model.attention != "auto":
        return make(model.attention)
    # `auto` asks which platform jax runs on, and here it is a CPU.
    plain = make("xla")
    fits = config.learner.row_tokens % 128 == 0 and plain.config.head_dim % 128 == 0
    return make("splash") if fits else plain


def _make(
    config: ml_collections.ConfigDict, slice_: hardware.Slice, load: Load
) -> list[Program]:
    policy = make_policy(config)
    tensor = config.sampler.tensor
    learner_mesh = mesh.make_mesh(config.learner, slice_.devices)
    learner = update.Learner(policy, config, learner_mesh)
    sampler = sampler_program.SamplerProgram(
        policy, (0,), slots=config.sampler.slots, context_tokens=config.rollout.context_tokens,
        block=config.sampler.decode_block, devices=slice_.host().devices, tensor=tensor)
    rows = _rows(config, load) / config.learner.minibatches
    micro_batches = max(1, math.ceil(rows / config.learner.microbatch_rows))
    updates = config.learner.minibatches * len(config.roles.train)
    held = _Held(config, policy, learner, sampler)
    update_flops, forward_flops = _learner_flops(config, policy, learner_mesh, load, micro_batches)
    # Where the reference's pass is part of the update, its parameters are an argument of it.
    separate = config.learner.reference_pass == "separate"
    forward = (micro_batches, *forward_flops)
    found = [Program(
        "update", lambda: learner.lower_update(micro_batches), micro_batches, *update_flops,
        held.sampler + held.other_sets + (held.reference if separate else 0), updates)]
    if config.learner.kl_coef > 0 and separate:
        found.append(Program(
            "reference", lambda: learner.lower_reference(micro_batches), *forward,
            held.sampler + held.learner, updates))
    if config.learner.old_logprobs == "learner":
        found.append(Program(
            "old log-probabilities", lambda: learner.lower_logprobs(micro_batches), *forward,
            held.sampler + held.learner - held.params + held.reference, updates))
    found.append(Program(
        "reshard", lambda: reshard.lower_reshard(policy, learner_mesh, tensor), 1, 0.0,
        0.0, held.sampler + held.reference + held.optimizer, len(config.roles.train)))
    return found + _sampler_programs(config, slice_, policy, sampler, load,
                                     held.learner + held.reference)


def _sampler_programs(
    config: ml_collections.ConfigDict, slice_: hardware.Slice, policy: base.Policy,
    sampler: sampler_program.SamplerProgram, load: Load, resident: int,
) -> list[Program]:
    """One chunk of a prompt, and one sampled token, of all slots of a host."""
    small, large = config.sampler.prefill_chunks[0], config.sampler.prefill_chunks[-1]
    context = config.rollout.context_tokens
    share = sampler.slots / slice_.host_devices
    groups = math.ceil(config.rollout.streams_per_step / slice_.hosts)
    waves = math.ceil(groups * config.rollout.group_size / sampler.slots)
    in_turn = waves * config.env.trials
    # Attention runs over the whole cache, whatever it holds.
    prefill = flops.forward(policy.config, context)
    step = flops.forward(policy.config, context, decoding=True)
    useful = flops.forward(policy.config, load.sequence_tokens / 2, decoding=True)
    read = max(0, load.sequence_tokens - load.generated_tokens)

    def body(work: flops.Work, tokens: int) -> float:
        """FLOPs of one device for a chunk; the head sees one token of each slot."""
        return share * (tokens * (work.total - work.head) + work.head)

    return [
        Program(f"prefill of {large}", lambda: sampler.lower_step(large), 0,
                body(flops.forward(policy.config, load.sequence_tokens / 2), large),
                body(flops.executed_forward(prefill), large), resident,
                in_turn * math.ceil(read / large)),
        Program("decode, one token", lambda: sampler.lower_step(small), 1, body(useful, 1),
                body(step, 1), resident, in_turn * load.generated_tokens, per_loop=True),
    ]


def _rows(config: ml_collections.ConfigDict, load: Load) -> float:
    """Packed rows of an iteration."""
    r = config.rollout
    sequences = r.streams_per_step * r.group_size * config.env.trials
    if r.writer_context == "fresh":
        sequences *= 2
    return sequences * load.sequence_tokens / config.learner.row_tokens


def _learner_flops(
    config: ml_collections.ConfigDict, policy: base.Policy, learner_mesh: Any, load: Load,
    micro_batches: int,
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(model, executed) FLOPs of a device: of an update, and of a forward pass."""
    row = config.learner.row_tokens
    tokens = micro_batches * config.learner.microbatch_rows * row / learner_mesh.size
    fused = policy.attention == "splash"
    tokens_of_device = row * config.learner.microbatch_rows // mesh.row_shards(learner_mesh)
    in_blocks = loss.head_block(tokens_of_device, policy.vocab_size) < policy.vocab_size
    useful = flops.forward(policy.config, load.sequence_tokens / 2)
    done = flops.forward(policy.config, row / 2 if fused else row)
    updating = flops.executed_update(done, config.model.remat, in_blocks, fused)
    return ((tokens * flops.model_update(useful).total, tokens * updating.total),
            (tokens * useful.total, tokens * flops.executed_forward(done).total))


class _Held:
    """Bytes per device that lie there through the whole iteration."""

    def __init__(
        self, config: ml_collections.ConfigDict, policy: base.Policy, learner: update.Learner,
        sampler: sampler_program.SamplerProgram,
    ):
        sets = len({config.roles.act, config.roles.write})
        trained = len(config.roles.train)
        self.params = params = bytes_per_device(policy.shapes(), learner.params_at)
        narrow = jax.eval_shape(lambda p: base.narrow(policy, p), policy.shapes())
        cache = jax.eval_shape(lambda: policy.init_cache(sampler.slots, sampler.context_tokens))
        # AdamW holds two arrays for each parameter.
        self.optimizer = 2 * params * trained
        self.learner = params * sets + self.optimizer
        self.other_sets = params * (sets - 1) + 2 * params * (trained - 1)
        kept = config.learner.kl_coef > 0 or config.track.kl_every > 0
        on_device = kept and config.learner.reference_memory == "device"
        self.reference = bytes_per_device(narrow, learner.params_at) if on_device else 0
        self.sampler = (sets * bytes_per_device(reshard.shapes(policy), sampler.params_at)
                        + bytes_per_device(cache, sampler.cache_at))


def bytes_per_device(shapes: Any, at: Any) -> int:
    """Of a tree of arrays with a tree of shardings."""
    return sum(math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize
               for x, s in zip(jax.tree.leaves(shapes), jax.tree.leaves(at), strict=True))
