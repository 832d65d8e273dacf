"""The benchmark's rules in the full text form, with the groups and reply sizes of the paper.

For language models; `qwen3_4b.py` names one. Hypothesis and row: those of benchmark_rules.py.
Watch: status/context_limit, format_errors/per_turn.
"""

from experiments.alchemy import benchmark_rules


def get_config():
    c = benchmark_rules.get_config()
    c.name, c.env.form = "full_text", "full"
    c.rollout.streams_per_step = c.rollout.group_size = 8
    c.rollout.act_tokens = c.rollout.write_tokens = 2560
    c.rollout.memory_tokens = 2048
    # A conversation that is longer ends with status context_limit.
    c.rollout.context_tokens = c.learner.row_tokens = 8192
    return c
