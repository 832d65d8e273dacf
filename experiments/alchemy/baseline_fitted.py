"""RIME whose writer is compared with what its own past rewards let one expect.

Hypothesis: coefficients fitted to the other streams leave the expected gradient of the improvement
as it is and take a fifth of its variance away, so memory is learnt in fewer iterations at the same
cost (docs/credit.md). Row: none, a variant of ours. Published: no number.
Watch: eval/gain, memory/correct_facts.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.history_baseline = "baseline_fitted", "fitted"
    return c
