"""RIME with windows of 1 task in the improvement (the study: 3).

Hypothesis: with a window of one the writer is paid mostly for regression to the mean.
Row: horizon K = 1. Published: no number. Watch: credit/corr_improvement_last_performance,
eval/gain.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.horizon = "horizon_1", 1
    return c
