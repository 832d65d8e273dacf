"""SmolLM2-135M-Instruct on the benchmark's rules in the full text form, six steps a trial.

Hypothesis: none; a real pretrained model, far too small to play well, walks the whole path (chat
template, free text, parsers, memory). Set up by launch/smollm.sh. Used by: rime_jax.transcript (one
stream of ten trials), tests/smollm. Six steps instead of 20 keep that to minutes on a CPU. At a
temperature of 1 over its whole vocabulary the model babbles, so it plays at 0.3.
"""

import os
import pathlib

from experiments.alchemy import benchmark_rules

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = os.environ.get("RIME_SMOLLM") or str(CACHE / "rime_jax" / "smollm2-135m-instruct")


def get_config():
    c = benchmark_rules.get_config("tiny")
    c.name, c.model.path, c.env.form, c.env.max_steps = "smollm", MODEL, "full", 6
    c.rollout.act_tokens, c.rollout.write_tokens, c.rollout.memory_tokens = 120, 240, 200
    c.rollout.context_tokens = c.learner.row_tokens = 4096
    c.rollout.streams_per_step = c.eval.streams = c.eval.rollouts = 1
    c.rollout.group_size, c.sampler.slots = 2, 1
    c.eval.temperature = 0.3
    c.sampler.decode_block, c.sampler.prefill_chunks = 32, (32, 256)
    return c
