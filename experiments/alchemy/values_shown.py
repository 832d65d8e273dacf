"""RIME with the values of stones always shown, as in the benchmark; the rest stays eased.

Hypothesis: trial and error within a task then replaces part of what memory brings, so that the
memory-blanked self gets better as well. Row: none, a variant of the tiny size; at the published
size this is rime.py. Watch: eval/performance, eval/stateless, eval/gain.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.env.value_display = "values_shown", "shown"
    if size == "tiny":
        c.rollout.context_tokens = c.learner.row_tokens = 160
    return c
