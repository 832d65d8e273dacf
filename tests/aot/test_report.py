"""From a configuration to the verdict, on virtual CPU devices in the place of a slice."""

import dataclasses
import json
import pathlib

import jax
import pytest

from rime_jax import config as config_lib
from rime_jax.aot import __main__ as program
from rime_jax.aot import hardware, programs, report
from rime_jax.policy import weights

needs_devices = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")

ROOT = pathlib.Path(__file__).parents[2]
LOAD = programs.Load(sequence_tokens=48, generated_tokens=16)


def small_slice(**chip):
    return hardware.Slice("v5e:2x4", dataclasses.replace(hardware.CHIPS["v5e"], **chip),
                          tuple(jax.devices()[:8]))


def small_config(**changes):
    c = config_lib.default()
    values = {"learner.row_tokens": 64, "rollout.context_tokens": 64, "learner.kl_coef": 0.01,
              "learner.mesh_data": 1, "learner.mesh_fsdp": -1, "sampler.slots": 8,
              "sampler.prefill_chunks": "4,16", "sampler.tensor": 2} | changes
    config_lib.override(c, {k: str(v) for k, v in values.items()})
    config_lib.validate(c)
    return c


@pytest.fixture(scope="module")
def rows():
    found = programs.make(small_config(), small_slice(), LOAD)
    return report.compile_all(found, small_slice())


@needs_devices
def test_every_program_of_an_iteration_is_compiled_and_fits(rows):
    assert [r.name for r in rows] == [
        "update", "reference", "reshard", "prefill of 16", "decode, one token"]
    for row in rows:
        assert row.fits and not row.error
        assert row.peak == row.arguments + row.outputs + row.temporary + row.resident
        assert row.run_s == max(row.compute_s, row.hbm_s, row.ici_s) > 0
    assert rows[0].executed_flops > rows[0].model_flops > 0
    # 16 siblings of 4 streams with 6 tasks of 48 tokens: 288 rows, in two mini-batches.
    assert [r.runs for r in rows[:3]] == [2, 2, 1]
    # 64 sessions in 8 slots: eight waves of six tasks, one chunk for the 32 tokens read twice.
    assert [r.runs for r in rows[3:]] == [8 * 6 * 2, 8 * 6 * 16]


@needs_devices
def test_what_does_not_fit_says_by_how_much(rows):
    tight = small_slice(hbm_gib=(rows[0].peak - 2**20) / 2**30)
    found = programs.make(small_config(), tight, LOAD)
    row = report.compile_all(found[:1], tight)[0]
    assert not row.fits
    assert row.spare == pytest.approx(-(2**20), abs=2)
    assert "This does not fit: update (does not fit by 0.0 GiB)" in report.as_text([row], tight)


@needs_devices
def test_the_report_says_the_same_in_both_forms(rows):
    text = report.as_text(rows, small_slice())
    assert "Everything fits" in text and "decode, one token" in text
    found = json.loads(json.dumps(report.as_json(rows, small_slice())))
    assert found["fits"] and found["devices"] == 8
    assert found["iteration_s"] == pytest.approx(sum(r.runs * r.run_s for r in rows))
    assert found["programs"][0]["collectives"]["all-gather"]["wire_bytes"] > 0


def test_a_refusal_of_the_compiler_is_part_of_the_report():
    row = report.Row("update", 1.0, 1.0, error="Exceeded hbm capacity by 3.2G")
    text = report.as_text([row], small_slice())
    assert "This does not fit: update (Exceeded hbm capacity by 3.2G)" in text


@needs_devices
@pytest.mark.parametrize("changes, message", [
    ({"learner.mesh_fsdp": 3}, "learner.mesh_fsdp = 3"),
    ({"learner.microbatch_rows": 12}, "learner.microbatch_rows = 12"),
    ({"sampler.slots": 5}, "sampler.slots = 5"),
    ({"sampler.tensor": 3}, "sampler.tensor = 3")])
def test_a_configuration_that_cannot_work_says_why(changes, message):
    with pytest.raises(config_lib.ConfigError, match=message):
        programs.make(small_config(**changes), small_slice(), LOAD)


@pytest.mark.parametrize("name, message", [
    ("v9:2x2", "the generations are v4, v5e"), ("v5e", "write <generation>"),
    ("v5p:4x4", "v5p have 3 axes"), ("v5e:0x4", "write <generation>"),
    ("v5e:²x2", "write <generation>"), ("v5e:32x16", "512 chips; the largest slice of v5e has 256"),
    ("v5p:16x20x28", "8960 chips; the largest slice of v5p has 6144")])
def test_an_unknown_slice_is_refused(name, message):
    with pytest.raises(hardware.TopologyError, match=message):
        hardware.describe(name)


def test_without_libtpu_the_message_says_how_to_install_it(monkeypatch):
    from jax.experimental import topologies

    def missing(*args, **kwargs):
        raise RuntimeError("no TPU backend")

    monkeypatch.setattr(topologies, "get_topology_desc", missing)
    monkeypatch.setattr(hardware, "_has_libtpu", lambda: False)
    with pytest.raises(SystemExit, match=r"pip install 'rime_jax\[aot\]'"):
        program.main([f"--config={ROOT / 'experiments/alchemy/rime.py'}", "--topology=v5e:4x4"])


def test_shipped_sizes_have_no_weights_and_say_where_they_are():
    directory = weights.resolve("qwen3-4b")
    policy = weights.make_policy(directory, "bfloat16", "layer")
    with pytest.raises(weights.ModelError, match="download Qwen/Qwen3-4B-Instruct-2507"):
        weights.check(directory, policy)


def test_a_real_slice_compiles_where_libtpu_is_installed():
    pytest.importorskip("libtpu")
    slice_ = hardware.describe("v5e:4x4")
    assert (len(slice_.devices), slice_.hosts, slice_.host_devices) == (16, 4, 4)
    assert len(slice_.host().devices) == 4
    c = small_config(**{"learner.microbatch_rows": 16})
    rows = report.compile_all(programs.make(c, slice_, LOAD)[2:3], slice_)
    assert rows[0].fits and rows[0].name == "reshard"


@pytest.mark.parametrize("option, message", [
    ("--sequence-tokens=99999", "no conversation is longer than rollout.context_tokens = 2048"),
    ("--generated-tokens=99999", "a conversation has 2048 tokens on the mean")])
def test_a_load_that_cannot_be_is_refused(monkeypatch, capsys, option, message):
    monkeypatch.setattr(hardware, "describe", lambda name: small_slice())
    monkeypatch.setattr(program.experiment, "read", lambda file, options: small_config(
        **{"learner.row_tokens": 2048, "rollout.context_tokens": 2048}))
    with pytest.raises(SystemExit) as stopped:
        program.main(["--config=FILE", "--topology=v5e:2x4", option])
    assert message in str(stopped.value) + capsys.readouterr().err


@needs_devices
def test_programs_are_chosen_by_name_and_an_unknown_one_lists_them():
    found = programs.make(small_config(), small_slice(), LOAD)
    assert [p.name for p in program._chosen(found, ["decode", "update"])] == [
        "decode, one token", "update"]
    with pytest.raises(SystemExit, match="--only bogus: the programs here are update, reference"):
        program._chosen(found, ["bogus"])
