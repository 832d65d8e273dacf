"""RIME under the benchmark's rules: 10 trials, 3 stones, 12 random potions, 20 steps, all graphs.

The shipped warm start has never seen them; a policy for them is made with rime_jax.warm_start and
this file. Row: Alchemy, RIME co-train. Watch: eval/gain, performance by position.
"""

from experiments.alchemy import values_shown


def get_config():
    c = values_shown.get_config()
    c.name = "benchmark_rules"
    c.env.trials, c.env.stones, c.env.max_steps, c.env.min_oracle = 10, 3, 20, 0
    c.env.supply, c.env.end_when_banked, c.env.edges = "random", False, (12, 10, 9, 8, 7)
    c.rollout.context_tokens = c.learner.row_tokens = 384
    return c
