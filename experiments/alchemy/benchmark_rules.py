"""RIME under the benchmark's rules: 10 trials, 3 stones, 12 random potions, 20 steps, all graphs.

Hypothesis: RIME's, in the game itself. Row: none for the small policy, whose warm start has never
seen these rules; one for them is made with rime_jax.warm_start and this file. At the published size
this is rime.py. Watch: eval/gain, performance/at_*.
"""

from experiments.alchemy import values_shown
from experiments.alchemy.models import full_text


def get_config(size="published"):
    c = values_shown.get_config(size)
    c.name, form = "benchmark_rules", c.env.form
    c.env = full_text.get_config().env
    c.env.form = form
    if size == "tiny":
        c.rollout.context_tokens = c.learner.row_tokens = 384
    return c
