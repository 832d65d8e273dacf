"""Run directories as they are found."""

import pytest

from rime_jax.report import runs
from tests.report.made import write_run


def test_a_directory_that_is_no_run_is_named_with_the_remedy(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nothing"):
        with pytest.raises(runs.ReportError, match=rf"{path} is no run directory.*runs/rime"):
            runs.read([path])


def test_a_run_named_twice_is_refused(tmp_path):
    path = write_run(tmp_path / "r")
    with pytest.raises(runs.ReportError, match="2 times"):
        runs.read([path, tmp_path / "r" / ".." / "r"])


def test_names_are_the_shortest_ends_that_differ(tmp_path):
    paths = [write_run(tmp_path / sweep / name) for sweep in "ab" for name in ("x", "y")]
    assert [run.name for run in runs.read(paths)] == ["a/x", "a/y", "b/x", "b/y"]
    assert [run.name for run in runs.read(paths[:2])] == ["x", "y"]


def test_a_torn_line_of_metrics_is_left_out(tmp_path):
    path = write_run(tmp_path / "r", lines=[{"step": 1, "a": 0.5}, {"step": 2, "a": None}])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "a": 0.')
    [run] = runs.read([path])
    assert run.steps == 2 and run.curve("a") == [(1, 0.5)] and run.curve("b") == []


def test_a_run_that_only_began_has_no_lines_and_no_dumps(tmp_path):
    path = write_run(tmp_path / "r")
    (path / "metrics.jsonl").unlink()
    (path / "samples").rmdir()
    (path / "eval").rmdir()
    [run] = runs.read([path])
    assert (run.steps, run.dumps, run.evaluations, run.problems) == (0, {}, {}, [])


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", "[" * 100_000])
def test_a_config_that_cannot_be_read_is_a_problem_and_no_error(tmp_path, text):
    path = write_run(tmp_path / "r")
    (path / "config.json").write_text(text)
    [run] = runs.read([path])
    assert run.config == {} and len(run.problems) == 1
