"""RIME goes on from the branch point with one set of parameters for both roles.

Hypothesis: what one role learns helps the other, so that sharing costs nothing. Row: co-train
continued. Published: reward 10.55, gain +2.27. Watch: eval/gain beside frozen_writer and decoupled.
"""

from experiments.codebase import rime
from rime_jax.experiment import named


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.steps, c.seed = "codebase_co_train_continued", 100, c.seed + 1
    run = named("codebase_branch_point", size)
    c.model.branch_from = f"runs/{run}/checkpoints/last"
    return c
