"""The CoD baseline: every reply is paid the mean reward from there to the end of the stream.

Hypothesis: returns over all that follows are noisier than RIME's windows, and pay the writer for
what the actor did. Row: Qwen3.5-4B, CoD. Published: reward 3.56, gain -0.16. Watch: eval/gain,
credit/corr_improvement_*, memory/well_formed.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.credit, c.reward.exploration = "codebase_cod", "cod", 0.0
    c.learner.kl_coef, c.rollout.memory_tokens = 0.0, min(c.rollout.memory_tokens, 1000)
    return c
