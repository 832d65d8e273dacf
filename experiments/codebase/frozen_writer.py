"""From the branch point with the writer as it was there; only the actor learns.

Hypothesis: the actor's share of the gain is small once the writer stops learning. Row: frozen
writer. Published: reward 8.80, gain +0.02. Watch: eval/gain, memory/retention_exact stays.
"""

from experiments.codebase import decoupled


def get_config(size="published"):
    c = decoupled.get_config(size)
    c.name, c.roles.train = "codebase_frozen_writer", ("actor",)
    return c
