"""RIME on Symbolic Alchemy, co-trained: the main job.

Hypothesis: paying the writer for the improvement of the next tasks makes memory worth reading.
Row: Alchemy, RIME co-train (published with Qwen3-4B: .490 / +.213). Here: the small policy and the
hidden-value variant. Watch: eval/gain, train/performance by position, memory/retention_exact.
"""

from rime_jax import config


def get_config():
    return config.default()
