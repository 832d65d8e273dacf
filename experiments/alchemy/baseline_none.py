"""RIME whose writer earns the next window alone, as deviation from its siblings.

Hypothesis: the window that the method takes off is a function of history, so without it the writer
learns the same, slower where siblings' rewards go on as they were (docs/credit.md).
Row: none, a variant of ours. Published: no number. Watch: eval/gain, memory/correct_facts.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.history_baseline = "baseline_none", "none"
    return c
