"""Streams of one task in the ACT-WRITE loop: nothing ever follows a memory, so only ACT learns.

Hypothesis: the actor gets better at tasks and not at using memory. Row: training data, single task
with ACT + WRITE. Published: for codebase only. Watch: eval/performance; gain and improvement need
streams, so evaluate it with the trials of rime.py (experiments/README.md).
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name = "single_task"
    # As many tasks a step, and in a pass, as with streams.
    c.rollout.streams_per_step *= c.env.trials
    c.env.pass_streams *= c.env.trials
    c.env.trials = 1
    return c
