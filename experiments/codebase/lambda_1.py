"""RIME with weight lambda = 1.0 of the exploration advantage (the study: 0.3).

Hypothesis: as much pay for what is new as for the task itself costs turns.
Row: lambda. Published: no number. Watch: exploration/score, performance/mean, eval/gain.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.exploration = "codebase_lambda_1", 1.0
    return c
