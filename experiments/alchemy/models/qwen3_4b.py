"""Qwen3-4B on the benchmark's game: the published scale of the experiments on Alchemy.

Used by: experiments/alchemy/rime.py and with it all others. model.path must name downloaded
weights; with the shipped sizes alone rime_jax.aot can compile it.
"""

from experiments.alchemy.models import full_text


def get_config():
    c = full_text.get_config()
    c.name, c.model.path, c.steps = "qwen3_4b", "qwen3-4b", 119
    c.model.dtype, c.model.remat = "bfloat16", "layer"
    c.learner.lr, c.learner.weight_decay, c.learner.kl_coef = 1e-6, 0.1, 0.01
    c.learner.warmup_updates, c.learner.minibatches, c.learner.aggregation = 0, 1, "sequence"
    c.learner.mesh_data, c.learner.mesh_fsdp, c.learner.microbatch_rows = 1, -1, 16
    # Of one host: two groups of eight.
    c.sampler.slots, c.sampler.decode_block, c.sampler.prefill_chunks = 16, 128, (32, 512)
    return c
