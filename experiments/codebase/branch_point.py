"""RIME up to the point where the runs with shared and separate parameters part.

Hypothesis: none; the three runs that branch off begin from the same parameters. Row: co-train at
the branch point. Published: reward 8.84, gain +0.72. Watch: eval/gain. Its last checkpoint must
stay (track.checkpoint_keep).
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.steps = "codebase_branch_point", 300
    return c
