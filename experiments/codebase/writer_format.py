"""The writer is paid for well-formed memories alone; the actor explores.

Hypothesis: form is learnt at once and content is not. Row: exploration on x writer with format
reward only. Published: no number. Watch: memory/well_formed, eval/gain, memory/retention_exact.
"""

from experiments.codebase import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.reward.writer = "codebase_writer_format", "format"
    return c
