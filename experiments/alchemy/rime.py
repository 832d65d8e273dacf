"""RIME on Symbolic Alchemy, co-trained: the main job.

Hypothesis: paying the writer for the improvement of the next tasks makes memory worth reading.
Row: Alchemy, RIME co-train. Published: performance .490, improvement +.213 (Qwen3-4B).
Sizes: published (the default): Qwen3-4B on the benchmark's game; tiny: the small policy in the
hidden-value variant, minutes on two cores. Watch: eval/gain, performance/at_*,
memory/retention_exact.
"""

from experiments.alchemy.models import qwen3_4b
from rime_jax import config


def get_config(size="published"):
    c = config.default() if size == "tiny" else qwen3_4b.get_config()
    c.name = "rime"
    return c
