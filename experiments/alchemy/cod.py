"""CoD: every reply earns the mean reward from there to the end, less the mean of its siblings.

Hypothesis: a mean over all later tasks says little about one memory, most of it is what the actor
did; the writer learns less than from two windows. Row: CoD (published for codebase: 3.56, gain
-.16). Its KL of 0 is the parent's. Watch: eval/gain, memory/retention_exact.
"""

from experiments.alchemy import rime


def get_config():
    c = rime.get_config()
    c.name, c.reward.credit, c.reward.exploration = "cod", "cod", 0.0
    return c
