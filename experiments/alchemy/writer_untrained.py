"""The actor is trained, exploration included; the writer stays as it began.

Hypothesis: without pay for improvement, memory keeps describing the last task only, and the
exploration score rises without a gain. Row: exploration on x writer untrained of the 2 x 2.
Published: the exploration score over training, a curve. Watch: eval/gain stays far below
rime.py's; exploration/score, memory/retention_exact.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.writer = "writer_untrained", "none"
    return c
