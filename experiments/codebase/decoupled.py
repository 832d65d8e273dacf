"""From the branch point with a set of parameters for each role, both trained.

Hypothesis: each role has the whole capacity, and loses what the other learns. Row: decoupled.
Published: reward 10.07, gain +1.07. Watch: eval/gain, learner/actor/*, learner/writer/*.
"""

from experiments.codebase import co_train_continued


def get_config(size="published"):
    c = co_train_continued.get_config(size)
    c.name, c.roles.act, c.roles.write = "codebase_decoupled", "actor", "writer"
    c.roles.train = ("actor", "writer")
    return c
