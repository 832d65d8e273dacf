"""RIME on graphs with bottlenecks, none of which training sees; potions are drawn at random.

Hypothesis: what is learnt is to write and to read memory, not the graphs: the gain carries over to
graphs that never occurred. Row: none, a harder game than the tiny size's default. The tiny size
needs a warm start of its own, made with rime_jax.warm_start and this file. Watch: eval/gain,
performance/at_*.
"""

from experiments.alchemy import rime


def get_config(size="published"):
    c = rime.get_config(size)
    c.name, c.env.supply = "unseen_graphs", "random"
    c.env.edges, c.env.hold_out = (10, 9, 8), "graphs"
    if size == "tiny":
        c.rollout.context_tokens = 144
        c.env.pass_streams = c.steps * c.rollout.streams_per_step  # all tiers, in one run
    return c
