"""Streams of one task in the ACT-WRITE loop: nothing ever follows a memory, so only ACT learns.

Hypothesis: the actor gets better at repairs and not at using memory. Row: training data, single
task with ACT + WRITE. Published: reward 3.35, gain -0.09. Watch: status/solved; gain needs streams,
so evaluate it on those of rime.py (experiments/README.md).
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.env.segments = "codebase_single_task", "1"
    # As many tasks a step as with streams.
    c.rollout.streams_per_step *= c.env.trials
    c.env.trials = 1
    return c
