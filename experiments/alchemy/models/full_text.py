"""The benchmark's game in the full text form, with the groups and reply sizes of the study.

Used by: qwen3_4b.py, and whoever brings another language model. Watch: status/context_limit,
format_errors/per_turn.
"""

from rime_jax import config


def get_config():
    c = config.default()
    c.name, c.env.form, c.env.value_display = "full_text", "full", "shown"
    c.env.trials, c.env.stones, c.env.max_steps, c.env.min_oracle = 10, 3, 20, 0
    c.env.supply, c.env.end_when_banked, c.env.edges = "random", False, (12, 10, 9, 8, 7)
    c.rollout.streams_per_step = c.rollout.group_size = 8
    c.rollout.act_tokens = c.rollout.write_tokens = 2560
    # A conversation that is longer than its tokens ends with status context_limit.
    c.rollout.memory_tokens, c.rollout.context_tokens, c.learner.row_tokens = 2048, 8192, 8192
    return c
