"""From the branch point with a set of parameters for each role, both trained.

Hypothesis: each role has the whole capacity, and loses what the other learns. Row: decoupled.
Published: for codebase only. Watch: eval/gain, learner/actor/*, learner/writer/*.
"""

from experiments.alchemy import co_train_continued


def get_config(size="published"):
    c = co_train_continued.get_config(size)
    c.name, c.roles.act, c.roles.write = "decoupled", "actor", "writer"
    c.roles.train = ("actor", "writer")
    return c
