"""The search compiles what may be fastest, once, and names the fastest that fits."""

import json

import jax
import pytest

from rime_jax import config as config_lib
from rime_jax import experiment
from rime_jax.aot import __main__ as program
from rime_jax.aot import programs, report, search
from tests.aot.test_report import LOAD, ROOT, small_config, small_slice

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")

FAST = search.Candidate((1, 8, 1), 8, "matmuls")
SLOW = search.Candidate((1, 8, 1), 8, "layer")
SMALL = search.Space(meshes=[(1, 8, 1)], rows=[8], remats=["layer", "matmuls"])


@pytest.fixture
def compiled(monkeypatch):
    """Figures that follow from the candidate alone; the names of those that were compiled."""
    names = []

    def compile_all(found, slice_, tell=None):
        row = report.Row(found[0].name, 1.0, 1, run_s=found[0].executed_flops, spare=1)
        names.append(row.run_s)
        return [row]

    monkeypatch.setattr(report, "compile_all", compile_all)
    return names


def run(file, space=SMALL, slice_=None, **changes):
    told = []
    found = search.search(small_config(**changes), slice_ or small_slice(), LOAD, space, file,
                          told.append)
    return found, told


def test_the_real_program_is_compiled_and_the_fastest_is_first(tmp_path):
    found, told = run(tmp_path / "found.jsonl")
    assert found[0].candidate == FAST and found[0].row.fits
    assert found[0].row.temporary > 0 and found[0].row.run_s > 0
    # A later row cannot be faster: its bound was compared, or it was compiled.
    assert all(found[0].row.run_s <= r.row.run_s for r in found)
    assert "matmuls" in search.as_text(found) and "fits" in search.as_text(found)
    assert any("compiling" in line for line in told)


def test_a_search_goes_on_where_it_was_stopped(tmp_path, compiled):
    file = tmp_path / "found.jsonl"
    first, _ = run(file)
    again, told = run(file)
    assert again == first and not any("compiling" in line for line in told)
    lines = len(file.read_text().splitlines())
    assert lines == len(compiled)
    # What figures depend on makes another result of it; what they do not depend on does not.
    run(file, steps=7)
    assert len(compiled) == lines
    run(file, **{"learner.kl_coef": 0.0})
    assert len(compiled) > lines


def test_every_candidate_divides_slice_and_rows(tmp_path, compiled):
    found, told = run(tmp_path / "found.jsonl", search.Space())
    assert len(told) > 2 * len(found)
    for result in found:
        data, fsdp, tensor = result.candidate.mesh
        assert data * fsdp * tensor == 8 and result.candidate.rows % (data * fsdp) == 0
        # The small policy has two key/value heads.
        assert tensor in (1, 2)


def test_what_cannot_win_is_not_compiled(tmp_path, monkeypatch):
    def compile_all(found, slice_, tell=None):
        return [report.Row("update", 1.0, 1, run_s=1e-12, spare=1)]

    monkeypatch.setattr(report, "compile_all", compile_all)
    found, told = run(tmp_path / "found.jsonl")
    assert [r.candidate for r in found] == [FAST]
    assert told[-1].endswith("left out") and "remat=layer" in told[-1]


def test_what_does_not_fit_comes_last_and_says_by_how_much(tmp_path, monkeypatch):
    def compile_all(found, slice_, tell=None):
        matmuls = not rows
        rows.append(report.Row("update", 1.0, 1, run_s=1.0, spare=-(2**30) if matmuls else 5))
        return rows[-1:]

    rows = []
    monkeypatch.setattr(report, "compile_all", compile_all)
    found, _ = run(tmp_path / "found.jsonl")
    assert [r.candidate for r in found] == [SLOW, FAST]
    assert "does not fit by 1.0 GiB" in search.as_text(found)


def test_what_arithmetic_rules_out_is_never_compiled(tmp_path, compiled):
    tiny = small_slice(hbm_gib=1e-6)
    with pytest.raises(config_lib.ConfigError, match=r"nothing to compile; 2 .* GiB at least"):
        run(tmp_path / "found.jsonl", slice_=tiny)
    with pytest.raises(config_lib.ConfigError, match="mesh 1x3x1.*do not fit 8 devices"):
        run(tmp_path / "found.jsonl", search.Space(meshes=[(1, 3, 1)]))
    assert not compiled


def test_bounds_are_below_what_the_compiled_program_takes(tmp_path):
    c = small_config(**{"learner.mesh_fsdp": 4, "learner.mesh_tensor": 2})
    candidate = search.Candidate((1, 4, 2), c.learner.microbatch_rows, c.model.remat)
    policy, slice_ = programs.make_policy(c), small_slice()
    update = programs.make(c, slice_, LOAD)[0]
    row = report.compile_all([update], slice_)[0]
    compute_s, ici_s = search._times(policy, c, candidate, update, slice_)
    assert compute_s == row.compute_s and 0 < ici_s <= row.ici_s
    assert 0 < search._floor(policy, c, candidate, slice_) <= row.peak - row.resident


def test_the_best_is_a_preset_that_training_reads(tmp_path):
    preset = tmp_path / "best.txt"
    preset.write_text(search.as_preset(FAST, "FILE", "v5e:2x4"))
    assert preset.read_text().startswith("# --config=FILE --topology=v5e:2x4\n")
    c = experiment.read(str(ROOT / "experiments/alchemy/rime.py"), [f"@{preset}"])
    assert (c.learner.mesh_fsdp, c.learner.microbatch_rows, c.model.remat) == (8, 8, "matmuls")


@pytest.mark.parametrize(
    "text", ["not json\n", '{"key": "a"}\n', '{"key": "a", "row": {"b": 1}}\n'])
def test_another_file_is_refused_and_left_as_it_is(tmp_path, text):
    file = tmp_path / "other"
    file.write_text(text)
    with pytest.raises(config_lib.ConfigError, match="not a file of results"):
        run(file)
    assert file.read_text() == text


def test_the_program_prints_table_and_preset(tmp_path, monkeypatch, capsys, compiled):
    monkeypatch.setattr(program.hardware, "describe", lambda name: small_slice())
    monkeypatch.setattr(program.experiment, "read", lambda file, options: small_config())
    arguments = ["--config=FILE", "--topology=v5e:2x4", f"--search={tmp_path}/found.jsonl",
                 "--meshes=1x8x1", "--rows=8", "--remats=layer,matmuls"]
    program.main(arguments)
    out = capsys.readouterr().out
    assert out.index("matmuls") < out.index("# --config=FILE --topology=v5e:2x4")
    program.main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found[0]["options"]["model.remat"] == "matmuls" and found[0]["fits"]
    assert [f["update"]["run_s"] for f in found] == sorted(compiled)


@pytest.mark.parametrize("option, message", [
    ("--meshes=1x8", "write data x fsdp x tensor"), ("--meshes=axb", "--meshes"),
    ("--rows=many", "--rows"), ("--rows=0", "--rows")])
def test_a_wrong_list_is_refused(option, message, capsys):
    with pytest.raises(SystemExit):
        program.main(["--config=FILE", "--topology=v5e:2x4", "--search=FILE", option])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("options, message", [
    (["--meshes=1x8x1"], "--meshes: says what --search tries"),
    (["--search=FILE", "--only=update"], "--search compiles the update alone")])
def test_options_that_would_be_ignored_are_refused(options, message, capsys):
    with pytest.raises(SystemExit):
        program.main(["--config=FILE", "--topology=v5e:2x4", *options])
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_compiled(tmp_path, compiled):
    with pytest.raises(config_lib.ConfigError, match="cannot be written.*name another"):
        run(tmp_path / "absent" / "found.jsonl")
    assert not compiled


def test_unknown_remat_is_refused(tmp_path):
    with pytest.raises(config_lib.ConfigError, match="model.remat"):
        run(tmp_path / "found.jsonl", search.Space(remats=["everything"]))
