"""RIME without the exploration reward: the actor is paid for its task alone.

Hypothesis: the actor tries fewer unknown potions, so that the writer has less to note. Row:
exploration off x writer trained of the 2 x 2. Published: the exploration score over training, a
curve. Watch: exploration/score, eval/gain.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.exploration = "exploration_off", 0.0
    return c
