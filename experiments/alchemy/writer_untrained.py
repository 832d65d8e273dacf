"""The actor is trained, exploration included; the writer stays as the warm start left it.

Hypothesis: without pay for improvement, memory keeps describing the last task only. Row:
exploration on x writer untrained of the 2 x 2. Watch: eval/gain stays far below rime.py's.
"""

from experiments.alchemy import rime


def get_config():
    c = rime.get_config()
    c.name, c.reward.writer = "writer_untrained", "none"
    return c
