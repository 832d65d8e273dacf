"""Qwen3.5-4B on Codebase Adaptation: the published scale of the experiments on it.

Used by: experiments/codebase/rime.py and with it all others. Two streams of 6 + 6 tasks a step.
model.path must name downloaded weights; with the shipped sizes rime_jax.aot can compile it.
"""

from experiments.alchemy.models import qwen3_4b


def get_config():
    c = qwen3_4b.get_config()
    c.name, c.env.domain, c.steps = "qwen3_5_4b", "codebase", 191
    c.model.path, c.model.thinking = "qwen3.5-4b", "on"
    c.env.trials, c.env.max_steps, c.env.pass_streams, c.rollout.streams_per_step = 12, 40, 382, 2
    c.rollout.env_timeout_s = 600.0
    c.rollout.act_tokens, c.rollout.write_tokens, c.rollout.memory_tokens = 2500, 2048, 1024
    c.rollout.context_tokens = c.learner.row_tokens = 20480
    c.learner.microbatch_rows, c.eval.streams = 64, 4
    return c
