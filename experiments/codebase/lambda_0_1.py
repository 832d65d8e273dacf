"""RIME with weight lambda = 0.1 of the exploration advantage (the study: 0.3).

Hypothesis: a tenth is enough to make the actor look where memory says nothing.
Row: lambda. Published: no number. Watch: exploration/score, performance/mean, eval/gain.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.exploration = "codebase_lambda_0_1", 0.1
    return c
