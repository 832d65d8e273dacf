"""RIME on streams of half the length: 3 + 3 tasks, easy to hard.

Hypothesis: memory pays only where something follows it for long enough. Row: training data, 3 + 3
curriculum. Published: reward 3.26, gain +0.58. Watch: eval/gain, segment/*.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, half = "codebase_streams_3_3", c.env.trials // 4
    # As many tasks a step as with the longer streams.
    c.rollout.streams_per_step *= 2
    c.env.segments, c.env.trials = f"{half}+{half}", 2 * half
    return c
