"""The actor is trained, exploration included; the writer stays as it began.

Hypothesis: untrained writers overwrite memory with a summary of the last task; the exploration
score rises and the gain does not. Row: exploration on x writer untrained of the 2 x 2. Published:
the exploration score over training, a curve. Watch: exploration/score, eval/gain,
memory/retention_exact.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.writer = "codebase_writer_untrained", "none"
    return c
