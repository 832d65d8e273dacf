"""Reports that are killed, made twice at once, or made of very many runs."""

import itertools
import json

import pytest

from rime_jax.report import runs, site, tables
from rime_jax.tracking import values
from tests.report.made import row, write_run


def write(paths, out, say=lambda said: None):
    return site.write(runs.read(paths), out, "/* plotly */", say)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "rime", lines=[{"step": 4}],
                     dumps={4: [row(0, 0, 1)], 8: [row(0, 0, 1)]})


def files(page):
    return {str(file.relative_to(page.parent)): file.read_bytes()
            for file in page.parent.rglob("*") if file.is_file()}


@pytest.mark.parametrize("saved", range(16))
def test_a_report_that_was_killed_is_made_again_by_the_same_command(
        run, tmp_path, monkeypatch, saved):
    """Whatever the file at which it ended; until then it does not look whole."""
    whole, calls, save = files(write([run], tmp_path / "whole")), itertools.count(), site._save

    def killed(path, text):
        if next(calls) == saved:
            raise KeyboardInterrupt
        save(path, text)

    monkeypatch.setattr(site, "_save", killed)
    try:
        write([run], tmp_path / "out")
    except KeyboardInterrupt:
        page = tmp_path / "out" / "index.html"
        assert not page.exists() or "not finished" in page.read_text()
    monkeypatch.undo()
    assert files(write([run], tmp_path / "out")) == whole


def test_a_second_report_at_once_is_refused(run, tmp_path):
    refused = []

    def again(said):
        with pytest.raises(runs.ReportError, match="another report is being written"):
            write([run], tmp_path / "out")
        refused.append(said)

    page = write([run], tmp_path / "out", again)
    assert refused and files(page) == files(write([run], tmp_path / "whole"))


def test_numbers_that_no_float_holds_are_left_out(tmp_path):
    huge = 10**400
    assert not values.is_number(huge) and not values.is_number(-huge)
    assert values.is_number(10**300) and not values.is_number(float("nan"))
    path = write_run(
        tmp_path / "rime", lines=[{"step": huge, "x": 1}, {"step": 2, "eval/performance": huge}],
        dumps={2: [row(0, 0, 1, reward=huge, performance=-huge, metrics={"a": huge})]},
        evaluations={"final": {"policies": {"step 2": {"performance": [huge, 0, huge]}}}})
    page = write([path], tmp_path / "out")
    assert runs.read([path])[0].steps == 2 and "e+" not in page.read_text()


def test_the_reference_is_the_run_that_differs_least_from_all(tmp_path):
    """As comparing each with each has it, without doing so."""
    paths = [write_run(tmp_path / f"r{i}", options={"learner.lr": lr, "env.edges": edges})
             for i, (lr, edges) in enumerate(itertools.product((1, 2.0, 2), ([12], [12, 10])))]
    config = json.loads((paths[0] / "config.json").read_text())
    del config["learner"]["b1"]
    (paths[0] / "config.json").write_text(json.dumps(config))
    found = runs.read(paths)
    distance = tables._distances(found)
    for run in found:
        assert distance(run) == sum(len(tables._changed(other, run)) for other in found)
