"""The SkillRise baseline: the writer is paid the discounted rewards of the later tasks.

Hypothesis: without the window before, the writer is also paid for siblings' luck and level. Row:
SkillRise. Published: for codebase only (experiments/codebase/skillrise.py). Watch: eval/gain,
credit/corr_improvement_*, memory/retention_exact.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.credit, c.reward.exploration = "skillrise", "skillrise", 0.0
    return c
