"""The writer is paid for well-formed memories alone; the actor for its task alone.

Hypothesis: neither role has a reason to make the next task easier. Row: exploration off x writer
with format reward only. Published: no number. Watch: memory/well_formed, eval/gain,
exploration/score.
"""

from experiments.alchemy import writer_format


def get_config(size="published"):
    c = writer_format.get_config(size)
    c.name, c.reward.exploration = "writer_format_exploration_off", 0.0
    return c
