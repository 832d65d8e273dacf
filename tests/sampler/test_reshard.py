"""From the learner's layout to the sampler's: bitwise a cast and a copy, whatever lies where."""

import pathlib
import re
import socket
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy import qwen3, qwen3_5
from rime_jax.sampler import reshard

ROOT = pathlib.Path(__file__).parents[2]
DEVICES = jax.devices()
QWEN3 = qwen3.Qwen3(qwen3.Qwen3Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.4),
    dtype=jnp.bfloat16)
QWEN3_5 = qwen3_5.Qwen3_5(qwen3_5.Qwen3_5Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8), dtype=jnp.bfloat16)

needs_devices = pytest.mark.skipif(len(DEVICES) < 8, reason="needs 8 devices")


def learners(policy, mesh_shape, order=None, seed=0):
    """Parameters as a learner holds them, and where."""
    devices = np.array(DEVICES[:8])[order if order is not None else range(8)]
    mesh = Mesh(devices.reshape(mesh_shape), mesh_lib.AXES, axis_types=(AxisType.Auto,) * 3)
    at = mesh_lib.shardings(mesh, policy.logical_axes(), policy.shapes())
    return jax.device_put(policy.init(jax.random.key(seed)), at), mesh


def expected(policy, params):
    """Cast and unstacked leaf by leaf on the host."""
    def cast(x, axes):
        matrix = len(axes) - ("layers" in axes) > 1
        return np.asarray(x).astype(policy.dtype if matrix else np.float32)
    stacked = jax.tree.map(cast, jax.device_get(params), policy.logical_axes())
    return {name: x if not isinstance(x, dict) else tuple(
        jax.tree.map(lambda a, i=i: a[i], x) for i in range(len(x["attn_norm"])))
        for name, x in stacked.items()}


def assert_same_bits(found, wanted):
    def same(a, b):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a).view(np.uint8), b.view(np.uint8))
    jax.tree.map(same, found, wanted)


@needs_devices
@pytest.mark.parametrize("policy", [QWEN3, QWEN3_5], ids=["qwen3", "qwen3_5"])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("mesh_shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)])
def test_resharded_is_a_cast_and_a_copy_under_every_mesh(policy, mesh_shape, tensor):
    params, _ = learners(policy, mesh_shape)
    wanted = expected(policy, params)
    move = reshard.Reshard(policy, DEVICES[:8], tensor)
    moved = move(params)
    # Its buffers are its own: the learner's next update consumes the others.
    jax.tree.map(lambda x: x.delete(), params)
    assert_same_bits(moved, wanted)
    assert jax.tree.map(lambda x: x.sharding, moved) == move.params_at


@needs_devices
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_order_of_the_learners_devices_does_not_matter(tensor):
    params, _ = learners(QWEN3, (1, 4, 2), order=[7, 2, 0, 5, 1, 3, 6, 4])
    moved = reshard.Reshard(QWEN3, DEVICES[:8], tensor)(params)
    assert_same_bits(moved, expected(QWEN3, params))


@needs_devices
def test_an_initial_policy_on_one_device_and_a_sampler_beside_the_learner_are_served():
    alone = QWEN3.init(jax.random.key(1))
    spread, _ = learners(QWEN3, (1, 8, 1))
    for devices in (DEVICES[:8], DEVICES[:1], DEVICES[2:4]):
        move = reshard.Reshard(QWEN3, devices)
        for params in (alone, spread):
            moved = move(params)
            assert_same_bits(moved, expected(QWEN3, params))
            assert jax.tree.leaves(moved)[0].sharding.device_set == set(devices)
    assert not jax.tree.leaves(alone)[0].is_deleted()


@needs_devices
def test_one_program_sends_narrow_numbers_only():
    _, mesh = learners(QWEN3, (1, 8, 1))
    # Not of the compiled program: CPUs widen what they send.
    text = reshard.lower_reshard(QWEN3, mesh, tensor=2).as_text()
    constrained = re.findall(r"sharding_constraint .*tensor<([\dx]+)x(\w+)>", text)
    assert len(constrained) >= 2 * len(jax.tree.leaves(QWEN3.shapes()))
    for shape, kind in constrained:
        # Two layers of norms have two axes, two layers of matrices three.
        matrix = shape.count("x") == 2 or shape == "24x16"
        assert kind == ("bf16" if matrix else "f32")


@needs_devices
def test_the_lowered_program_places_as_the_sampler_does():
    params, mesh = learners(QWEN3, (1, 8, 1))
    moved = reshard.lower_reshard(QWEN3, mesh, tensor=2).compile()(params)
    assert_same_bits(moved, expected(QWEN3, params))
    wanted = reshard.Reshard(QWEN3, DEVICES[:8], 2).params_at
    assert all(x.sharding.is_equivalent_to(at, x.ndim) for x, at in zip(
        jax.tree.leaves(moved), jax.tree.leaves(wanted), strict=True))
    assert moved["layers"][1]["gate"].sharding.shard_shape((16, 32)) == (16, 16)


def test_programs_are_made_once():
    move = reshard.Reshard(QWEN3, DEVICES[:1])
    a, b = (QWEN3.init(jax.random.key(i)) for i in range(2))
    move(a)
    move(b)
    assert len(move._programs) == 1


def test_devices_that_form_no_groups_are_refused():
    with pytest.raises(ValueError, match="sampler.tensor = 3.*a divisor of 1"):
        reshard.group_mesh(DEVICES[:1], 3)


_PROCESS = """
    import os, sys
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax
    import numpy as np
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize("localhost:{port}", 2, int(sys.argv[1]))
    from rime_jax.learner import mesh as mesh_lib
    from rime_jax.sampler import reshard
    from tests.sampler import test_reshard
    policy = test_reshard.QWEN3
    for shape, order in (((1, 8, 1), range(8)), ((2, 2, 2), [0, 4, 1, 5, 2, 6, 3, 7])):
        mesh = jax.sharding.Mesh(np.array(jax.devices())[list(order)].reshape(shape), mesh_lib.AXES,
                                 axis_types=(jax.sharding.AxisType.Auto,) * 3)
        at = mesh_lib.shardings(mesh, policy.logical_axes(), policy.shapes())
        whole = jax.device_get(policy.init(jax.random.key(0)))
        params = jax.tree.map(
            lambda x, s: jax.make_array_from_callback(x.shape, s, lambda i: x[i]), whole, at)
        for tensor in (1, 2):
            move = reshard.Reshard(policy, jax.local_devices(), tensor)
            moved = move(params)
            assert all(x.is_fully_addressable for x in jax.tree.leaves(moved))
            assert jax.tree.map(lambda x: x.sharding, moved) == move.params_at
            test_reshard.assert_same_bits(moved, test_reshard.expected(policy, whole))
    print("same bits")
"""


def test_two_processes_each_get_what_their_sampler_needs():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    program = textwrap.dedent(_PROCESS).replace("{port}", str(port))
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(i)], cwd=ROOT, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(2)]
    try:
        for process in processes:
            out, errors = process.communicate(timeout=120)
            assert "same bits" in out, errors[-3000:]
    finally:
        for process in processes:
            process.kill()
