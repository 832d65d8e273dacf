import logging
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rime_jax.tracking.checkpoint import CheckpointError, Checkpoints, SaveError


def _mesh(*sizes):
    axes = ("data", "fsdp")[: len(sizes)]
    return jax.make_mesh(sizes, axes, axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))


def _arrays(scale=1.0, width=8):
    params = {"layers": [{"w": scale * jnp.arange(2.0 * width).reshape(2, width)}],
              "norm": jnp.full((4,), scale, jnp.bfloat16)}
    return {"params": params, "opt": optax.adam(1e-3).init(params), "step": jnp.int32(3),
            "key": jax.random.key(5)}


def _abstract(arrays):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), arrays)


def _assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.fixture
def checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    yield checkpoints
    checkpoints.close()


def test_arrays_and_state_come_back_exactly_in_another_manager(tmp_path, checkpoints):
    state = {"source": 12, "judge": {"position": [1, 2]}, "name": "ü"}
    checkpoints.save(4, _arrays(), state)
    checkpoints.wait()
    other = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert other.latest() == 4
    arrays, restored = other.restore(4, _abstract(_arrays()))
    _assert_equal(arrays, _arrays())
    assert restored == state
    other.close()


def test_an_empty_directory_has_no_checkpoint(checkpoints):
    assert checkpoints.latest() is None
    with pytest.raises(CheckpointError, match="no checkpoint of step 3"):
        checkpoints.restore(3, _abstract(_arrays()))


def test_only_the_newest_are_kept(tmp_path, checkpoints):
    for step in (1, 2, 5):
        checkpoints.save(step, {"x": jnp.full((2,), step)}, {})
    checkpoints.wait()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["2", "5"]


def test_a_step_that_is_saved_is_left_as_it_is(checkpoints):
    for value in (1.0, 2.0):
        checkpoints.save(7, {"x": jnp.float32(value)}, {"value": value})
        checkpoints.wait()
    arrays, state = checkpoints.restore(7, {"x": jnp.float32(0)})
    assert (float(arrays["x"]), state) == (1.0, {"value": 1.0})


def test_a_checkpoint_is_restored_onto_another_mesh(checkpoints):
    value = jnp.arange(64.0).reshape(8, 8)
    checkpoints.save(1, {"w": jax.device_put(value, NamedSharding(_mesh(8), P("data")))}, {})
    checkpoints.wait()
    for sharding in (NamedSharding(_mesh(2, 4), P("fsdp", "data")),
                     NamedSharding(_mesh(1), P()), None):
        wanted = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding)}
        arrays, _ = checkpoints.restore(1, wanted)
        np.testing.assert_array_equal(np.asarray(arrays["w"]), np.asarray(value))
        assert sharding is None or arrays["w"].sharding == sharding


def test_what_happens_after_save_does_not_enter_the_checkpoint(checkpoints):
    on_device = jnp.zeros((1 << 16,))
    on_host, state = np.zeros((1 << 16,)), {"n": 0}
    checkpoints.save(1, {"device": on_device, "host": on_host}, state)
    state["n"] = 1
    on_host += 1
    update = jax.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(20):
        on_device = update(on_device)
    checkpoints.wait()
    wanted = {"device": jnp.zeros((1 << 16,)),
              "host": jax.ShapeDtypeStruct((1 << 16,), np.float64, sharding=None)}
    arrays, restored = checkpoints.restore(1, wanted)
    assert not np.asarray(arrays["device"]).any() and not np.asarray(arrays["host"]).any()
    assert restored == {"n": 0}


@pytest.mark.parametrize("other, message", [
    (lambda a: a | {"params": _arrays(width=16)["params"]},
     r"params/layers/0/w is float32\[2, 8\] there and float32\[2, 16\]"),
    (lambda a: a | {"step": jnp.float32(0)}, r"step is int32\[\] there and float32\[\]"),
    (lambda a: a | {"extra": jnp.zeros(3)}, r"extra is absent there and float32\[3\]"),
    (lambda a: {k: v for k, v in a.items() if k != "step"}, r"step is int32\[\] there and absent"),
])
def test_another_model_is_refused_and_the_array_named(checkpoints, other, message):
    checkpoints.save(1, _arrays(), {})
    checkpoints.wait()
    with pytest.raises(CheckpointError, match=message + ".*config.json.*run_dir"):
        checkpoints.restore(1, _abstract(other(_arrays())))


def test_a_reader_beside_a_training_changes_nothing_and_says_nothing(
    tmp_path, checkpoints, monkeypatch, caplog
):
    checkpoints.save(1, {"x": jnp.zeros(2)}, {})
    checkpoints.wait()
    unfinished = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    unfinished.mkdir()
    # As in a process that opens no other checkpoints.
    monkeypatch.setattr(logging.getLogger("absl"), "filters", [])
    caplog.clear()
    reader = Checkpoints(tmp_path / "checkpoints", keep=1, read_only=True)
    assert reader.latest() == 1 and unfinished.exists()
    assert not caplog.records
    reader.close()


_SAVES_FOR_EVER = """
import sys
import jax.numpy as jnp
from rime_jax.tracking.checkpoint import Checkpoints

checkpoints = Checkpoints(sys.argv[1], keep=2)
step = checkpoints.latest() or 0
while True:
    step += 1
    checkpoints.save(step, {"x": jnp.full((64, 64), step), "y": jnp.full((8,), step)},
                     {"step": step})
    print(step, flush=True)
"""


def test_a_killed_run_leaves_a_usable_checkpoint(tmp_path):
    root = pathlib.Path(__file__).parents[2]
    wanted = {"x": jnp.zeros((64, 64), jnp.int32), "y": jnp.zeros((8,), jnp.int32)}
    chance = random.Random(0)
    before = 0
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", _SAVES_FOR_EVER, str(tmp_path / "c")], cwd=root,
            stdout=subprocess.PIPE, text=True, env=os.environ | {"XLA_FLAGS": ""})
        for _ in range(3):
            assert child.stdout.readline(), "the saving process ended by itself"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=chance.uniform(0, 0.2))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        checkpoints = Checkpoints(tmp_path / "c", keep=2)
        step = checkpoints.latest()
        assert step > before
        arrays, state = checkpoints.restore(step, wanted)
        assert state == {"step": step}
        assert all(np.all(np.asarray(x) == step) for x in arrays.values())
        checkpoints.close()
        before = step


def test_what_the_disk_refuses_is_said_in_a_line_and_may_pass(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    wide = {"w": jax.random.normal(jax.random.key(0), (1000, 100))}
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        with pytest.raises(SaveError, match="checkpoints: File too large. Nothing") as error:
            checkpoints.save(1, wide, {})
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(str(error.value)) < 250 + len(str(tmp_path)) and not caplog.records
    again = Checkpoints(tmp_path / "checkpoints", keep=2)
    again.save(1, wide, {})
    assert again.latest() == 1
