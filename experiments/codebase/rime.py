"""RIME on Codebase Adaptation, co-trained: 2 streams of 6 + 6 tasks a step, easy to hard.

Hypothesis: paying the writer for the improvement of the next tasks makes memory worth reading.
Row: Qwen3.5-4B, RIME; training data 6 + 6 curriculum. Published: reward 10.55, gain +2.27.
Sizes: published (the default): Qwen3.5-4B; tiny: an untrained policy of bytes, for the machinery.
Watch: eval/gain, performance/at_*, segment/*, memory/retention_exact.
"""

from experiments.codebase.models import qwen3_5_4b, tiny_bytes


def get_config(size="published"):
    c = tiny_bytes.get_config() if size == "tiny" else qwen3_5_4b.get_config()
    c.name = "codebase_rime"
    return c
