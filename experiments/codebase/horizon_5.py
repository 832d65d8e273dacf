"""RIME with windows of 5 tasks in the improvement (the study: 3).

Hypothesis: a longer window is less noisy, and pays for memories that others wrote since.
Row: horizon K = 5. Published: no number. Watch: credit/corr_improvement_last_performance,
eval/gain.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.horizon = "codebase_horizon_5", 5
    return c
