"""Scripts that hand rollouts to the page: whole where there is room, cut where there is none."""

import base64
import gzip
import json
import re

import hypothesis
from hypothesis import strategies as st

from rime_jax.report import shards
from tests.report.made import noise, row


def unpacked(script):
    """(run, step, what the page gets) of a script."""
    run, step, packed = re.fullmatch(
        r'rimeShard\((\d+),(\d+),"([A-Za-z0-9+/=]*)"\);\n', script).groups()
    return int(run), int(step), json.loads(gzip.decompress(base64.b64decode(packed)))


def _write(tmp_path, rows, room=10**9):
    budget = shards.Budget(room, 1)
    kept = shards.write(tmp_path / "x.js", 2, 7, rows, budget)
    return kept, unpacked((tmp_path / "x.js").read_text())


def test_everything_of_a_row_comes_back(tmp_path):
    own = row(1, 2, 3, reward=1 / 3)
    kept, (run, step, found) = _write(tmp_path, [own])
    assert (kept, run, step) == (shards.LIMITS[0], 2, 7)
    [got], texts = found["rows"], found["texts"]
    got["memory_before"], got["memory_after"] = (
        texts[got[name]] for name in ("memory_before", "memory_after"))
    got["transcript"] = [[speaker, texts[text]] for speaker, text in got["transcript"]]
    # `info` is in the index of dumps.
    assert got == {k: v for k, v in own.items() if k != "info"} | {"reward": 0.3333}


def test_a_text_that_many_rows_share_stands_once(tmp_path):
    rows = [row(0, i, 1, memory_after="the same " * 50) for i in range(8)]
    _, (_, _, found) = _write(tmp_path, rows)
    assert len(found["texts"]) == len(set(map(str, found["texts"])))
    assert len({r["memory_after"] for r in found["rows"]}) == 1


def test_a_field_that_was_not_recorded_stays_away(tmp_path):
    _, (_, _, found) = _write(tmp_path, [{"group": 0, "sibling": 0, "position": 1}])
    assert found == {"texts": [], "rows": [{"group": 0, "sibling": 0, "position": 1}]}


def test_without_room_the_middle_of_messages_goes_and_is_counted(tmp_path):
    text = noise(200_000)
    rows = [row(0, 0, 1, transcript=[["actor", text]])]
    kept, (_, _, found) = _write(tmp_path, rows, room=4000)
    assert 0 < kept < 5000
    [[_, index]] = found["rows"][0]["transcript"]
    head, left_out, tail = found["texts"][index]
    assert len(head) + left_out + len(tail) == len(text)
    assert text.startswith(head) and text.endswith(tail)
    assert (tmp_path / "x.js").stat().st_size <= 4000


def test_room_that_a_dump_leaves_goes_to_the_others():
    budget = shards.Budget(100, 4)
    assert budget.share == 25
    budget.spend(10)
    assert budget.share == 30
    budget.spend(500)
    assert budget.share == 0


@hypothesis.given(st.text(st.characters(blacklist_categories=[]), max_size=60), st.integers(0, 40))
def test_a_cut_text_keeps_both_ends_of_any_text(text, limit):
    found = shards._cut(text, limit)
    if isinstance(found, str):
        assert found == text and len(text) <= limit
    else:
        head, left_out, tail = found
        assert len(head) + len(tail) == limit and len(head) + left_out + len(tail) == len(text)
        assert text.startswith(head) and text.endswith(tail)
