"""The untrained policy in the ACT-WRITE loop: nothing learns (the learning rate is 0).

Hypothesis: a prompt alone makes memories of some use. Row: Qwen3.5-4B untrained, ACT + WRITE.
Published: reward 1.33, gain +0.48. Watch: eval/performance, eval/gain, memory/well_formed.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.steps, c.learner.lr = "codebase_prompted", 0, 0.0
    return c
