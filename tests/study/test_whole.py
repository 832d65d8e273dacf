"""A whole study, very small, and again with nothing left to do: pytest -m docs_commands."""

import pathlib

import pytest

from rime_jax.study import __main__ as study
from rime_jax.study import page, plan, results

ROOT = pathlib.Path(__file__).parents[2]
SMALL = plan.Setting(
    "small", "Small", "As short as it can be.",
    {"w": ("warm_start.steps=2", "warm_start.sequences=2", "warm_start.hidden_size=32",
           "warm_start.layers=1", "warm_start.heads=2", "warm_start.intermediate_size=32")},
    (("rime", "actor_only"), ("single_task",)),
    ("steps=1", "env.trials=2", "rollout.streams_per_step=2", "rollout.group_size=2",
     "eval.every=0", "eval.streams=2", "eval.rollouts=1", "eval.bootstrap=100",
     "track.kl_every=0", "track.text_every=0"),
    ("rime", "actor_only"), (0,))


@pytest.mark.docs_commands
def test_a_study_is_made_and_then_there_is_nothing_left_to_do(
        tmp_path, monkeypatch, capfd, request):
    if "docs_commands" not in request.config.option.markexpr:
        pytest.skip("minutes: pytest -m docs_commands tests/study/test_whole.py")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    monkeypatch.setattr(plan, "SETTINGS", {"small": SMALL})
    monkeypatch.setattr(page, "RESULTS", tmp_path / "none.json")
    arguments = ["--settings", "small", "--out", str(tmp_path), "--jobs", "2"]
    study.main(arguments)
    found = results.load(tmp_path / "results.json")
    assert {row.key for row in found.rows.values()} == {
        ("small", "w", "rime", "", 0), ("small", "w", "actor_only", "", 0),
        ("small", "w", "rime", "actor_only", 0), ("small", "w", "actor_only", "rime", 0),
        ("small", "w", results.WARM_START, "", 0), ("small", "w", "single_task", "", 0)}
    assert "left out" not in capfd.readouterr().out
    made = (tmp_path / "results.json").read_bytes()
    study.main(arguments)
    said = capfd.readouterr().out
    assert said.count("before this sweep") >= 3 and said.count(": done, ") == 4
    assert (tmp_path / "results.json").read_bytes() == made
