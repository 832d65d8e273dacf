"""An untrained policy of bytes on short streams of real repairs: the tiny size of this domain.

Used by: experiments/codebase/rime.py:tiny and with it all others. It shows that everything runs on
two cores; random bytes repair nothing, so rewards are 0. Watch: failures/*, status/*.
"""

from rime_jax import config


def get_config():
    c = config.default()
    c.name, c.env.domain, c.model.path, c.steps = "tiny_bytes", "codebase", "tiny-bytes-v1", 3
    c.env.segments, c.env.trials, c.env.max_steps = "2+2", 4, 2
    c.rollout.streams_per_step, c.rollout.group_size, c.learner.microbatch_rows = 1, 2, 2
    c.rollout.env_timeout_s = 600.0
    c.rollout.act_tokens, c.rollout.write_tokens, c.rollout.memory_tokens = 32, 64, 48
    c.rollout.context_tokens = c.learner.row_tokens = 8192
    c.sampler.slots, c.sampler.decode_block, c.sampler.prefill_chunks = 4, 16, (64, 512)
    c.eval.streams = c.eval.rollouts = 1
    return c
