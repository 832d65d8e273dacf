"""Presets of GPU hosts are valid configurations, spread over the devices that they name."""

import math

import pytest

from rime_jax import experiment
from rime_jax.learner import mesh
from tests import launched

PRESETS = sorted((launched.ROOT / "launch/presets/gpu").glob("*.txt"))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda file: file.stem)
def test_a_preset_is_valid_and_spread_over_its_devices(preset):
    first = preset.read_text().splitlines()[0].removeprefix("# ").split()
    file, devices = (word.split("=")[1] for word in first)
    c = experiment.read(str(launched.ROOT / file), [f"@{preset}"])
    sizes = {axis: c.learner[f"mesh_{axis}"] for axis in mesh.AXES}
    assert math.prod(sizes.values()) == int(devices)
    assert c.learner.microbatch_rows % math.prod(sizes[axis] for axis in mesh.ROWS) == 0
    assert c.sampler.slots % (int(devices) // c.sampler.tensor) == 0
