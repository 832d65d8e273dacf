"""RIME goes on from the branch point with one set of parameters for both roles.

Hypothesis: what one role learns helps the other, so that sharing costs nothing. Row: co-train
continued. Published: for codebase only. Watch: eval/gain beside frozen_writer and decoupled.
"""

from experiments.alchemy import rime
from rime_jax.experiment import named


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.steps, c.seed = "co_train_continued", 40, c.seed + 1
    c.model.branch_from = f"runs/{named('branch_point', size)}/checkpoints/last"
    return c
