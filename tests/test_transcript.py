"""The transcript shows everything that was said, and text of the policy cannot break out of it."""

import pathlib

import pytest

from rime_jax import transcript
from tests import scripted

CONFIG = f"{pathlib.Path(__file__).parents[1] / 'experiments/alchemy/rime.py'}:tiny"


def test_a_transcript_holds_all_that_was_said_in_order(tmp_path, capsys):
    out = tmp_path / "new" / "transcript.md"
    transcript.main([
        f"--config={CONFIG}", "--set", "env.trials=2", "--set",
        f"model.path={scripted.warm_model()}", "--out", str(out)])
    text = out.read_text()
    assert f"saved {out}" in capsys.readouterr().out
    assert f"--set env.trials=2 --set model.path={scripted.warm_model()} --out={out}`" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Task 1",
                                                                             "## Task 2"]
    assert text.count("**writer**") == 2 and text.count("Exploration ") == 2
    first = text[text.index("The actor's prompt"):]
    assert first.index("; 0 ") < first.index("**actor**") < first.index("**writer**")


def test_text_cannot_close_its_quotation():
    quoted = transcript._quote("a\n````\n# loud").splitlines()
    assert quoted[0] == "`````text" and quoted[-1] == "`````"


def test_one_of_config_and_run_is_needed(tmp_path):
    with pytest.raises(SystemExit):
        transcript.main([f"--out={tmp_path / 'x.md'}"])
    assert not (tmp_path / "x.md").exists()
