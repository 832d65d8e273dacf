"""The untrained policy in the ACT-WRITE loop: nothing learns (the learning rate is 0).

Hypothesis: a prompt alone does not make memories that the next tasks gain from. Row: Alchemy,
Qwen3-4B prompted. Published: performance .301, improvement +.086. Watch: eval/performance,
eval/gain, eval/improvement.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.steps, c.learner.lr = "prompted", 0, 0.0
    return c
