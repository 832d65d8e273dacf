"""Reading episode and split files, and what errors name."""

import json

import pytest

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import episodes

CHEM = chemistry_lib.Chemistry((0, 1, 2), (1, 1, 1), (1, 1, 1), 108).to_json()
GOOD = {"episode": 4, "chem": CHEM, "trials": [[[0, 1, 2], [0] * 12]], "oracle": [3]}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_episodes_are_read_by_id(tmp_path):
    read = episodes.read_episodes(write(tmp_path / "e.jsonl", GOOD))
    assert list(read) == [4]
    assert read[4].trials[0].stones == (0, 1, 2)
    assert read[4].chemistry.n_edges == 12


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("episode", 4),
        ("chem", {**CHEM, "n_edges": 3}),
        ("trials", [[[0, 1, 8], [0] * 12]]),
        ("trials", [[[0, 1, 2], [6] * 12]]),
        ("trials", [[[0, 1, 2]]]),
        ("oracle", [1, 2]),
    ],
)
def test_a_bad_row_names_file_line_and_field(tmp_path, field, value):
    path = write(tmp_path / "e.jsonl", GOOD, {**GOOD, "episode": 5, field: value})
    with pytest.raises(ValueError, match=f"e.jsonl, line 2: {field}"):
        episodes.read_episodes(path)


@pytest.mark.parametrize("field", sorted(GOOD))
def test_a_missing_field_is_named(tmp_path, field):
    row = {k: v for k, v in GOOD.items() if k != field}
    with pytest.raises(ValueError, match=f"line 1: {field}: missing"):
        episodes.read_episodes(write(tmp_path / "e.jsonl", row))


def test_a_broken_line_names_file_and_line(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_text("{")
    with pytest.raises(ValueError, match="e.jsonl, line 1"):
        episodes.read_episodes(path)


@pytest.mark.parametrize(
    ("split", "field"),
    [
        ({"order": [9], "keep": {"12": 1}, "eval": [4]}, "order"),
        ({"order": [4, 4], "keep": {"12": 2}, "eval": []}, "order"),
        ({"order": [4], "keep": {"12": 1}, "eval": [4]}, "order and eval"),
        ({"order": [4], "keep": {"12": 3}, "eval": []}, "keep"),
        ({"order": [4], "keep": {"12": 1}}, "eval"),
    ],
)
def test_a_bad_split_names_file_and_field(tmp_path, split, field):
    read = episodes.read_episodes(write(tmp_path / "e.jsonl", GOOD))
    with pytest.raises(ValueError, match=f"s.json: {field}"):
        episodes.read_split(write(tmp_path / "s.json", split), read)


def test_the_published_split_is_ordered_from_many_edges_to_few(recorded):
    read = episodes.read_episodes(recorded("alchemy_episodes1000.jsonl"))
    split = episodes.read_split(recorded("alchemy_rime_split.json"), read)
    tiers = [read[i].chemistry.n_edges for i in split.order]
    assert tiers == sorted(tiers, reverse=True)
    assert split.keep == {12: 243, 10: 270, 9: 48, 8: 169, 7: 220}
    assert [read[i].chemistry.n_edges for i in split.eval] == [7] * 20
