"""RIME with half the budget of a memory.

Hypothesis: the writer must choose, so that facts displace prose before the gain falls. Row: memory
budget. Published: no number. Watch: memory/malformed/over_budget, memory/tokens, eval/gain.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.rollout.memory_tokens = "memory_half", c.rollout.memory_tokens // 2
    return c
