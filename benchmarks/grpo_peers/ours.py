"""The update by `rime_jax.learner`: sequences packed, everything in `Learner.step`."""

import pathlib
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.grpo_peers import task as task_lib
from benchmarks.grpo_peers import worker
from rime_jax import config as config_lib
from rime_jax.learner import batch as batch_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import update as update_lib
from rime_jax.policy import weights


def make_update(folder: pathlib.Path) -> Callable[[], float]:
    task = task_lib.load(folder)
    batch = pack(task)
    config = learner_config(task.settings, batch)
    policy = weights.make_policy(folder / "policy", "float32", "none")
    learner = update_lib.Learner(policy, config,
                                 mesh_lib.make_mesh(config.learner, jax.local_devices()[:1]))
    load = [weights.load(folder / name, policy, learner.params_at)
            for name in ("policy", "reference")]
    state, reference = learner.start({"policy": load[0]}), learner.reference(load[1])

    def update() -> float:
        nonlocal state
        state, metrics = learner.step(state, {"policy": [batch]}, reference)
        jax.block_until_ready(state)
        return float(metrics["policy/loss"])

    return update


def pack(task: task_lib.Task) -> batch_lib.Batch:
    """The sequences in rows as long as the longest, two in work at a time.

    The fewest that fill two cores: what is kept for the backward pass is fresh memory in every
    update, and with all rows at once a fifth of the time went into the system's handing it out.
    """
    sequences = [_trainable(task, i) for i in range(len(task.prompts))]
    return batch_lib.pack(sequences, task.prompts.shape[1] + task.completions.shape[1], 2)


def _trainable(task: task_lib.Task, i: int) -> batch_lib.Trainable:
    prompt = task.prompts[i][task.prompts[i] != task_lib.PAD]
    completion = task.completions[i][task.completions[i] != task_lib.PAD]
    trained = np.arange(len(prompt) + len(completion)) >= len(prompt)
    behaviour = np.zeros(len(trained), np.float32)
    behaviour[trained] = task.behaviour[i, : len(completion)]
    return batch_lib.Trainable(
        key=(0, i, 0), ids=np.concatenate([prompt, completion]),
        roles=np.where(trained, batch_lib.ROLES["act"], 0).astype(np.int8),
        weights=trained.astype(np.float32),
        advantages=np.where(trained, task.advantages[i], 0).astype(np.float32),
        behaviour=behaviour)


def learner_config(settings: task_lib.Settings, batch: batch_lib.Batch):
    config = config_lib.default()
    for name in ("kl_coef", "clip_low", "clip_high", "lr", "b1", "b2", "grad_clip"):
        config.learner[name] = getattr(settings, name)
    config.learner.warmup_updates = 0
    config.learner.microbatch_rows, config.learner.row_tokens = batch.tokens.shape[1:]
    return config


if __name__ == "__main__":
    worker.serve(make_update, "jax")
