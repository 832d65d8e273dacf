"""The CoD baseline: every reply is paid the mean reward from there to the end of the stream.

Hypothesis: returns over all that follows are noisier than RIME's windows, and pay the writer for
what the actor did. Row: CoD. Published: for codebase only (experiments/codebase/cod.py).
Watch: eval/gain, credit/corr_improvement_*, memory/well_formed.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.credit, c.reward.exploration = "cod", "cod", 0.0
    c.learner.kl_coef, c.rollout.memory_tokens = 0.0, min(c.rollout.memory_tokens, 1000)
    return c
