"""The mesh fits the devices, and rules place parameters only where they divide."""

import jax
import pytest
from jax.sharding import PartitionSpec as P

from rime_jax import config as config_lib
from rime_jax.learner import mesh as mesh_lib

DEVICES = jax.devices()
pytestmark = pytest.mark.skipif(len(DEVICES) < 8, reason="needs 8 devices")


def mesh(data, fsdp, tensor, devices=8):
    config = config_lib.default().learner
    config.mesh_data, config.mesh_fsdp, config.mesh_tensor = data, fsdp, tensor
    return mesh_lib.make_mesh(config, DEVICES[:devices])


@pytest.mark.parametrize("sizes, devices, shape", [
    ((-1, 1, 1), 8, (8, 1, 1)), ((2, 2, 2), 8, (2, 2, 2)), ((2, -1, 2), 8, (2, 2, 2)),
    ((1, 1, -1), 3, (1, 1, 3)), ((-1, 1, 1), 1, (1, 1, 1))])
def test_minus_one_takes_the_rest(sizes, devices, shape):
    assert tuple(mesh(*sizes, devices=devices).shape.values()) == shape


@pytest.mark.parametrize("sizes", [(3, 1, 1), (-1, 3, 1), (2, 2, 1)])
def test_sizes_that_do_not_fit_name_the_options(sizes):
    with pytest.raises(ValueError, match="learner.mesh_data.*8 devices"):
        mesh(*sizes)


def spec(axes, shape):
    array = jax.ShapeDtypeStruct(shape, "float32")
    return mesh_lib.shardings(mesh(2, 2, 2), {"w": axes}, {"w": array})["w"].spec


def test_axes_are_placed_by_the_table():
    assert spec(("layers", "embed", "mlp"), (3, 8, 6)) == P(None, "fsdp", "tensor")


def test_an_axis_that_does_not_divide_is_replicated():
    assert spec(("vocab", "embed"), (7, 8)) == P(None, "fsdp")


def test_a_mesh_axis_divides_one_axis_only():
    assert spec(("heads", "mlp"), (4, 4)) == P("tensor", None)


def test_an_axis_without_name_is_replicated():
    assert spec((None, "embed"), (4, 4)) == P(None, "fsdp")


def test_an_unknown_name_or_a_wrong_rank_is_refused():
    with pytest.raises(ValueError, match="'experts' has no rule"):
        spec(("experts",), (4,))
    with pytest.raises(ValueError, match="shape"):
        spec(("embed",), (4, 4))
