"""Multi-turn RL: the actor is paid for its task alone, the writer is untrained.

Hypothesis: the actor gets better within a task, and memory carries little from one to the next.
Row: exploration off x writer untrained of the 2 x 2. Published: the exploration score over
training, a curve without a table. Watch: eval/gain, eval/stateless, exploration/score.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.writer, c.reward.exploration = "actor_only", "none", 0.0
    return c
