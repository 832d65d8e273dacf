"""Fused attention against plain attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

from rime_jax.policy import attention, layers


def inputs(heads=4, kv_heads=2, tokens=256, head_dim=128, rows=4):
    rng = np.random.default_rng(0)

    def normal(n):
        return jnp.asarray(rng.normal(size=(rows, n, tokens, head_dim)), jnp.float32)

    # Three segments and padding; the borders differ from row to row.
    cuts = np.sort(rng.integers(1, tokens, size=(rows, 3)), axis=1)
    segments = (np.arange(tokens)[None, :, None] >= cuts[:, None]).sum(-1) + 1
    segments = np.where(segments == 4, 0, segments)
    return normal(heads), normal(kv_heads), normal(kv_heads), jnp.asarray(segments, jnp.int32)


@pytest.mark.parametrize("heads, kv_heads", [(4, 2), (2, 2), (4, 1)])
def test_splash_attention_equals_plain_attention_with_gradients(heads, kv_heads):
    q, k, v, segments = inputs(heads, kv_heads)
    real = (segments > 0)[:, None, :, None]

    def loss(kernel, q, k, v):
        out = attention.packed_attention(q, k, v, segments, kernel, interpret=True)
        return (jnp.where(real, out, 0.0) ** 2).sum()

    plain = jax.value_and_grad(lambda *a: loss("xla", *a), argnums=(0, 1, 2))(q, k, v)
    splash = jax.value_and_grad(lambda *a: loss("splash", *a), argnums=(0, 1, 2))(q, k, v)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), plain, splash)


def test_splash_attention_under_a_mesh_equals_one_device():
    q, k, v, segments = inputs()
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"),
                         axis_types=(jax.sharding.AxisType.Auto,) * 3)

    def run(q, k, v, segments):
        return attention.packed_attention(q, k, v, segments, "splash", interpret=True)

    alone = run(q, k, v, segments)
    with jax.set_mesh(mesh):
        spread = jax.jit(run)(q, k, v, segments)
    np.testing.assert_allclose(alone, np.asarray(spread), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("remat, forwards", [("layer", 2), ("attention", 1), ("matmuls", 1)])
def test_a_kept_output_of_splash_attention_is_not_computed_again(remat, forwards):
    inputs_ = inputs()

    def layer(x):
        return attention._splash(*(x * a for a in inputs_[:3]), inputs_[3], interpret=True)

    kept = layers.remat(layer, remat, prevent_cse=True)
    program = jax.make_jaxpr(jax.value_and_grad(lambda x: kept(x).sum()))(1.0).jaxpr
    needed, _ = partial_eval.dce_jaxpr(program, [True, True])
    assert str(needed).count("name=splash_mha_fwd") == forwards


def test_the_platform_decides_and_odd_shapes_fall_back():
    assert attention._choose("auto", "tpu", 256, 128, "bfloat16") == "splash"
    assert attention._choose("auto", "tpu", 250, 128, "bfloat16") == "xla"
    assert attention._choose("auto", "gpu", 250, 64, "bfloat16") == "cudnn"
    assert attention._choose("auto", "gpu", 250, 64, "float32") == "xla"
    assert attention._choose("auto", "cpu", 256, 128, "bfloat16") == "xla"


def test_a_named_kernel_that_cannot_take_the_shapes_is_an_error():
    with pytest.raises(ValueError, match="model.attention = 'splash'.*multiples of 128"):
        attention._choose("splash", "tpu", 100, 128, "float32")


def test_the_learner_spreads_a_fused_kernel_over_its_mesh(monkeypatch):
    """One update with splash attention (interpreted) equals one with plain attention."""
    import functools

    from rime_jax import config as config_lib
    from rime_jax.learner import batch as batch_lib
    from rime_jax.learner import mesh as mesh_lib
    from rime_jax.learner import update
    from rime_jax.policy import qwen3

    c = config_lib.default()
    c.learner.row_tokens, c.learner.microbatch_rows, c.learner.old_logprobs = 128, 4, "sampler"
    c.learner.mesh_fsdp, c.learner.mesh_tensor = 2, 2
    sizes = qwen3.Qwen3Config(32, 32, 32, 1, 2, 2, 128)
    rng = np.random.default_rng(0)
    sequences = [
        batch_lib.Trainable(
            (0, i, 0), rng.integers(32, size=n).astype(np.int32),
            np.where(np.arange(n) > 3, 1, 0).astype(np.int8),
            np.where(np.arange(n) > 3, 1, 0).astype(np.float32),
            rng.normal(size=n).astype(np.float32), np.full(n, -3, np.float32))
        for i, n in enumerate((40, 60, 90, 128, 30))
    ]
    batches = {"policy": [batch_lib.pack(sequences, 128, 4)]}
    interpreted = functools.partial(attention._splash_local, interpret=True)
    monkeypatch.setattr(attention, "_splash_local",
                        lambda *arrays, interpret: interpreted(*arrays))
    norms = {}
    for kernel, remat in (("xla", "none"), ("splash", "attention")):
        policy = qwen3.Qwen3(sizes, attention=kernel, remat=remat)
        learner = update.Learner(policy, c, mesh_lib.make_mesh(c.learner, jax.devices()))
        state = learner.init({"policy": policy.init(jax.random.key(0))})
        _, found = learner.step(state, batches)
        norms[kernel] = [float(found[f"policy/{k}"]) for k in ("grad_norm", "loss", "entropy")]
    np.testing.assert_allclose(norms["splash"], norms["xla"], rtol=1e-4)


@pytest.mark.parametrize(("kernel", "platform", "of"), [
    ("splash", "cpu", "TPU"), ("splash", "gpu", "TPU"), ("cudnn", "tpu", "GPU")])
def test_a_kernel_of_another_platform_is_refused_before_anything_is_played(kernel, platform, of):
    with pytest.raises(ValueError, match=f"model.attention = '{kernel}' runs on a {of}.*'auto'"):
        attention.check_platform(kernel, platform)
    for right in ("auto", "xla"):
        attention.check_platform(right, platform)
