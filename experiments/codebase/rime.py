"""RIME on Codebase Adaptation at the published size: Qwen3.5-4B, 2 streams, 6 + 6 tasks.

Hypothesis: RIME's, at its own scale. Row: Qwen3.5-4B, RIME (reward 10.55, gain +2.27; untrained
with ACT + WRITE 1.33, +.48). Watch: eval/gain, performance/at_*, memory/retention_exact.
model.path must name downloaded weights; with the shipped sizes rime_jax.aot can compile it.
"""

from experiments.alchemy import qwen3_4b


def get_config():
    c = qwen3_4b.get_config()
    c.name = c.env.domain = "codebase"
    c.model.path, c.model.thinking = "qwen3.5-4b", "on"
    c.env.trials, c.env.max_steps, c.env.pass_streams, c.rollout.streams_per_step = 12, 40, 382, 2
    c.rollout.act_tokens, c.rollout.write_tokens, c.rollout.memory_tokens = 2500, 2048, 1024
    c.rollout.context_tokens = c.learner.row_tokens = 20480
    c.learner.microbatch_rows, c.eval.streams = 64, 4
    return c
