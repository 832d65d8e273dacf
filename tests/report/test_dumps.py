"""Dumps in every state a killed, old or mended run can leave."""

import gzip
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from rime_jax.report import dumps, runs
from tests.report.made import row, write_run


def _lines(rows):
    return "".join(json.dumps(own) + "\n" for own in rows).encode()


def _read(tmp_path, data):
    path = tmp_path / "step_000001.jsonl.gz"
    path.write_bytes(data)
    return dumps.read(path)


def test_a_whole_dump_is_read_as_it_was_written(tmp_path):
    rows = [row(0, 0, 1), row(0, 1, 1, criteria=None, malformed="no items")]
    assert _read(tmp_path, gzip.compress(_lines(rows))) == (rows, 0)


def test_what_stands_before_the_break_is_kept(tmp_path):
    rows = [row(0, i, 1, memory_after=str(i) * 3000) for i in range(50)]
    whole = gzip.compress(_lines(rows))
    for cut in (len(whole) - 1, len(whole) // 2, 30, 3):
        found, lost = _read(tmp_path, whole[:cut])
        assert found == rows[:len(found)] and lost == 1
    assert len(_read(tmp_path, whole[:-1])[0]) >= 49


def test_several_members_are_one_dump_and_a_broken_one_keeps_the_first(tmp_path):
    first, second = [row(0, 0, 1)], [row(0, 1, 1)]
    both = gzip.compress(_lines(first)) + gzip.compress(_lines(second))
    assert _read(tmp_path, both) == (first + second, 0)
    assert _read(tmp_path, gzip.compress(_lines(first)) + b"rubbish") == (first, 1)


def test_a_file_that_is_no_gzip_is_one_loss(tmp_path):
    assert _read(tmp_path, b"hello") == ([], 1)
    assert _read(tmp_path, b"") == ([], 0)


@pytest.mark.parametrize("line", [
    b"{", b"[]", b"3", b"null", b"\xff\xfe", b"[" * 100_000, b"{}",
    b'{"group": 0, "sibling": 0}', b'{"group": 0, "sibling": 0, "position": 0}',
    b'{"group": true, "sibling": 0, "position": 1}', b'{"group": "a", "sibling": 0, "position": 1}',
    b'{"group": 0, "sibling": 1e3, "position": 1}'])
def test_a_line_without_a_place_is_counted_and_no_more(tmp_path, line):
    good = row(0, 0, 1)
    data = gzip.compress(_lines([good]) + line + b"\n" + _lines([good]))
    assert _read(tmp_path, data) == ([good, good], 1)


@pytest.mark.parametrize(("name", "value"), [
    ("reward", "high"), ("reward", True), ("reward", float("nan")), ("status", 3),
    ("criteria", [1, 2]), ("criteria", ["a", 1, 1, 1]), ("criteria", 1.0),
    ("memory_before", None), ("memory_after", ["x"]), ("transcript", "text"),
    ("transcript", [["actor"]]), ("transcript", [["actor", None]]), ("metrics", [1]),
    ("metrics", {"x": "y"}), ("info", "x"), ("malformed", {})])
def test_a_field_of_another_type_is_as_if_not_recorded(tmp_path, name, value):
    good = row(0, 0, 1)
    [found], lost = _read(tmp_path, gzip.compress(_lines([good | {name: value}])))
    assert lost == 0
    assert found == {k: v for k, v in good.items() if k != name}


def test_an_old_row_keeps_what_it_has_and_unknown_fields_go(tmp_path):
    old = {"group": 0, "sibling": 0, "position": 1, "reward": 1.0}
    [found], _ = _read(tmp_path, gzip.compress(_lines([old | {"colour": "red"}])))
    assert found == old


@hypothesis.given(st.text(st.characters(blacklist_categories=[]), max_size=40))
def test_any_text_comes_back(text):
    line = json.dumps(row(0, 0, 1, memory_after=text)).encode()
    data, whole = dumps._decompressed(gzip.compress(line))
    assert whole and dumps._row(data)["memory_after"] == text


def test_what_could_not_be_read_is_said_once_for_each_file(tmp_path):
    path = write_run(tmp_path / "r", dumps={1: [row(0, 0, 1), "no row"], 2: [[], []]})
    (path / "eval" / "final.json").write_text('{"policies": ')
    [run] = runs.read([path])
    assert len(run.rows(1)) == 1 and run.rows(2) == []
    assert run.problems[1:] == ["step_000001.jsonl.gz: 1 line could not be read",
                                "step_000002.jsonl.gz: 2 lines could not be read"]
    assert run.problems[0].startswith("final.json cannot be read")
