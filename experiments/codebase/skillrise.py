"""The SkillRise baseline: the writer is paid the discounted rewards of the later tasks.

Hypothesis: without the window before, the writer is also paid for siblings' luck and level. Row:
Qwen3.5-4B, SkillRise. Published: reward 7.25, gain +0.60. Watch: eval/gain,
credit/corr_improvement_*, memory/retention_exact.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.credit, c.reward.exploration = "codebase_skillrise", "skillrise", 0.0
    return c
