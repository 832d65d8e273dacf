"""CoD credit: both roles earn the mean reward of what follows, less the siblings' mean.

Hypothesis: a return over all later tasks says less about one memory than the difference of two
windows. Row: CoD, a baseline beside RIME (published
for codebase only: 3.56 / -0.16). Watch: eval/gain, memory/retention_exact.
"""

from experiments.alchemy import rime


def get_config():
    c = rime.get_config()
    c.name, c.reward.credit, c.reward.exploration = "cod", "cod", 0.0
    return c
