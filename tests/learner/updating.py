"""A small learner of each family, and data for it."""

import functools
import json

import jax
import numpy as np

from rime_jax import config as config_lib
from rime_jax.learner import batch as batch_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import update as update_lib
from rime_jax.policy import qwen3, qwen3_5

VOCABULARY = 24
POLICY = qwen3.Qwen3(qwen3.Qwen3Config(
    vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.5))
PARAMS = POLICY.init(jax.random.key(0))
HYBRID = qwen3_5.Qwen3_5(qwen3_5.Qwen3_5Config(
    vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=4,
    layer_types=("linear_attention", "full_attention"), partial_rotary_factor=0.5,
    initializer_range=0.5))
# Family → (policy, parameters).
FAMILIES = {"qwen3": (POLICY, PARAMS), "qwen3_5": (HYBRID, HYBRID.init(jax.random.key(0)))}


def make_config(**changes):
    config = config_lib.default()
    values = dict(row_tokens=64, microbatch_rows=4, lr=1e-2, warmup_updates=5, weight_decay=0.1,
                  grad_clip=0.5) | changes
    for name, value in values.items():
        config.learner[name] = value
    return config


def learner(config, devices=1, family="qwen3"):
    """A learner without state can serve many tests; its programs are then compiled once."""
    return _learner(config_lib.dump(config), devices, family)


@functools.cache
def _learner(dumped, devices, family):
    config = config_lib.default()
    config.update(json.loads(dumped))
    mesh = mesh_lib.make_mesh(config.learner, jax.devices()[:devices])
    return update_lib.Learner(FAMILIES[family][0], config, mesh)


def sequences(n=24, seed=0, weight=lambda roles: (roles > 0).astype(np.float32)):
    """Conversations of both roles; each WRITE continues the ACT of its task."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n // 2):
        ids = rng.integers(1, VOCABULARY, rng.integers(12, 30)).astype(np.int32)
        cut = int(rng.integers(5, len(ids) - 3))
        for length, role, first in ((cut, 1, 2), (len(ids), 2, cut + 1)):
            roles = np.zeros(length, np.int8)
            roles[first:] = role
            # A few distinct values keep gradients far from cancelling to rounding error.
            advantage = np.float32(rng.choice([-1.0, 0.5, 2.0]))
            out.append(batch_lib.Trainable(
                (i, 0, 0), ids[:length], roles, weight(roles), (roles > 0) * advantage,
                np.where(roles > 0, -np.log(VOCABULARY) + rng.normal(size=length) * 0.3, 0)
                .astype(np.float32)))
    return out


def run(config, batches, devices=1, steps=1, reference=None, family="qwen3"):
    """Parameters and metrics after `steps` updates from the family's parameters."""
    own = learner(config, devices, family)
    state = own.init({"policy": FAMILIES[family][1]})
    reference = None if reference is None else own.reference(reference)
    for _ in range(steps):
        state, metrics = own.step(state, {"policy": batches}, reference)
    return jax.device_get(state.params["policy"]), jax.device_get(metrics)


def pack(config, items):
    return batch_lib.pack(items, config.learner.row_tokens, config.learner.microbatch_rows)


def assert_same(a, b, rtol=1e-5):
    """Loss, gradient norm and every parameter agree."""
    for name in ("policy/loss", "policy/grad_norm"):
        np.testing.assert_allclose(a[1][name], b[1][name], rtol=rtol)
    for x, y in zip(jax.tree.leaves(a[0]), jax.tree.leaves(b[0]), strict=True):
        # Norms that start at 0 hold only a few steps, in which AdamW divides by small numbers.
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * max(np.abs(x).max(), 1e-2))
