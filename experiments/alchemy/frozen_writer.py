"""From the branch point with the writer as it was there; only the actor learns.

Hypothesis: the actor's share of the gain is small once the writer stops learning. Row: frozen
writer. Published: for codebase only. Watch: eval/gain, memory/retention_exact stays.
"""

from experiments.alchemy import decoupled


def get_config(size="published"):
    c = decoupled.get_config(size)
    c.name, c.roles.train = "frozen_writer", ("actor",)
    return c
