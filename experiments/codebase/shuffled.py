"""RIME on streams of 6 + 6 tasks in random order.

Hypothesis: where hard tasks come first, groups have no gradient and memories nothing to say. Row:
training data, 6 + 6 shuffled. Published: reward 8.05, gain +0.69. Watch: segment/gradient_at_*,
eval/gain.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.env.order = "codebase_shuffled", "shuffled"
    return c
