"""SkillRise: the writer earns the discounted rewards of the later tasks, the actor its own task's.

Hypothesis: without the window before, siblings whose actor is better anyway pay their writer for
it. Row: SkillRise (published for codebase: 7.25, gain +.60). Watch: eval/gain,
memory/retention_exact.
"""

from experiments.alchemy import rime


def get_config():
    c = rime.get_config()
    c.name, c.reward.credit, c.reward.exploration = "skillrise", "skillrise", 0.0
    return c
