"""SkillRise credit: the writer earns the discounted rewards of the later tasks.

Hypothesis: what is not compared with the tasks before pays the memory for tasks that are easy
anyway. Row: SkillRise, a baseline beside RIME (published
for codebase only: 7.25 / +0.60). Watch: eval/gain,
memory/retention_exact.
"""

from experiments.alchemy import rime


def get_config():
    c = rime.get_config()
    c.name, c.reward.credit, c.reward.exploration = "skillrise", "skillrise", 0.0
    return c
