"""Each launch preset is a valid configuration of its slice; `-m aot` compiles it, minutes each.

What compiling proves: libtpu accepts every program of an iteration for that slice (the update, the
reference, the reshard, prefill and decoding), and each fits a chip's memory beside all that others
hold meanwhile. It says nothing of the programs' results, nor of their speed on a chip.
"""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

from rime_jax import config as config_lib
from rime_jax import experiment
from rime_jax.aot import hardware, programs
from rime_jax.learner import mesh

ROOT = pathlib.Path(__file__).parents[2]
PRESETS = sorted((ROOT / "launch/presets").glob("*.txt"))
by_preset = pytest.mark.parametrize("preset", PRESETS, ids=lambda file: file.stem)


def arguments(preset):
    """What a preset is for, from its first line: `# --config=FILE --topology=NAME`."""
    return preset.read_text().splitlines()[0].removeprefix("# ").split()


@by_preset
def test_a_preset_is_valid_and_spread_over_its_slice(preset):
    file, topology = (word.split("=")[1] for word in arguments(preset))
    c = experiment.read(str(ROOT / file), [f"@{preset}"])
    generation, _, layout = topology.partition(":")
    chips = [int(n) for n in layout.split("x")]
    devices = math.prod(chips) * hardware.CHIPS[generation].devices
    sizes = {axis: c.learner[f"mesh_{axis}"] for axis in mesh.AXES}
    assert math.prod(sizes.values()) == devices
    assert c.learner.microbatch_rows % math.prod(sizes[axis] for axis in mesh.ROWS) == 0
    local = math.prod(min(n, most) for n, most in zip(
        chips, hardware.CHIPS[generation].host, strict=False))
    assert local % c.sampler.tensor == 0 and c.sampler.slots % (local // c.sampler.tensor) == 0
    assert programs.make_policy(c).attention == "splash"


@by_preset
@pytest.mark.aot
def test_a_preset_fits_its_slice(preset, request, tmp_path):
    if "aot" not in request.config.option.markexpr:
        pytest.skip("minutes of compilation: pytest -m aot tests/aot")
    pytest.importorskip("libtpu")
    # Without the settings of the tests' own virtual devices.
    clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    done = subprocess.run(
        [sys.executable, "-m", "rime_jax.aot", *arguments(preset), "--set", f"@{preset}",
         "--json"],
        cwd=ROOT, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # With --basetemp=DIR it stays, for the tables of docs/scaling.md.
    (tmp_path / "report.json").write_text(done.stdout)
    found = json.loads(done.stdout)
    assert found["fits"] and [p["name"].split()[0] for p in found["programs"]] == [
        "update", "reference", "reshard", "prefill", "decode,"]


def test_a_preset_that_is_not_there_is_named(tmp_path):
    with pytest.raises(config_lib.ConfigError, match="absent.txt: cannot be read"):
        experiment.read(str(ROOT / "experiments/alchemy/rime.py"), [f"@{tmp_path}/absent.txt"])


def test_a_later_option_counts_over_a_preset(tmp_path):
    preset = tmp_path / "own.txt"
    preset.write_text("# mine\n\nsteps=3\nseed=5\n")
    c = experiment.read(str(ROOT / "experiments/alchemy/rime.py"), [f"@{preset}", "steps=4"])
    assert (c.steps, c.seed) == (4, 5)
