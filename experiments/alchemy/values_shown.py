"""RIME with the values of stones always shown, the real rule; the rest of the eased variant stays.

Hypothesis: trial and error within a task then needs no memory, so that performance rises while the
gain over the memory-blanked self stays near 0. Watch: eval/performance against eval/gain.
"""

from experiments.alchemy import rime


def get_config():
    c = rime.get_config()
    c.name, c.env.value_display = "values_shown", "shown"
    c.rollout.context_tokens = c.learner.row_tokens = 160
    return c
