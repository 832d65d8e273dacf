"""Damaged and hostile files of an evaluation cost what they held, and nothing else."""

import json
import re

import pytest

from rime_jax import config as config_lib
from rime_jax import distributed, evaluate
from rime_jax.evaluation import compare, journal, tables
from tests import scripted
from tests.evaluation import games

ROW = {"condition": "c", "group": 0, "sibling": 0, "position": 0, "task": "t", "status": "solved",
       "reward": 1.0, "performance": None, "turns": 1, "memory_before": "", "memory_after": "",
       "malformed": None, "past": {"observation": "", "ids": [1], "ended": "", "outcome": ""}}
FOUND = {"protocol": "streams", "setting": "s", "trials": 1, "policies": {"p": {}},
         "units": {"names": ["a", "b"], "clusters": ["a", "b"],
                   "values": {"p": {"gain": [1.0, None]}}}}
DEEP = "[" * 100_000


def changed(whole, name, value):
    made = json.loads(json.dumps(whole))
    place = made
    *parents, last = name.split(".")
    for part in parents:
        place = place[part]
    place[last] = value
    return json.dumps(made)


@pytest.mark.parametrize("line", [
    DEEP, "3", "null", '"x"', "\x00", json.dumps(ROW)[:-5],
    *(changed(ROW, name, value) for name, value in (
        ("condition", []), ("group", -1), ("group", True), ("sibling", 0.5), ("position", "0"),
        ("reward", None), ("reward", "1"), ("reward", 10**400), ("performance", "x"),
        ("turns", {}), ("memory_before", 3), ("memory_after", None), ("malformed", 1),
        ("past", 3), ("past.ids", ["x"]), ("past.ids", 3), ("past.ended", None), ("more", 1))),
])
def test_a_damaged_line_of_the_journal_is_as_if_it_was_not_played(tmp_path, line):
    whole = json.dumps(ROW | {"group": 1})
    file = tmp_path / "x-0.jsonl"
    file.write_bytes(f"{line}\n".encode() + b"\xff\xfe\n" + f"{whole}\n".encode())
    kept = journal.Journal(file, "x-*.jsonl")
    kept.close()
    assert kept.finished == 1 and kept.get("c", 1, 0, 0).past.ids == (1,)


@pytest.mark.parametrize("text", [
    DEEP, "", "[]", "3", *(changed(FOUND, name, value) for name, value in (
        ("units", 3), ("units", {}), ("policies", 3), ("policies", {}), ("policies", {"q": {}}),
        ("units.names", [[], []]), ("units.names", ["a"]), ("units.names", ["a", "a"]),
        ("units.clusters", ["a"]), ("units.values", {"p": 3}), ("units.values.p", {"gain": 3}),
        ("units.values.p", {"gain": ["x", "y"]}), ("units.values.p", {"gain": [1, 10**400]}),
        ("units.values.p", {"gain": [float("inf"), 1]}))),
])
def test_damaged_results_are_named_and_not_compared(tmp_path, text):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(FOUND))
    bad.write_text(text)
    for files in ((good, bad), (bad, good)):
        with pytest.raises(SystemExit, match=r"bad\.json"):
            compare.main(list(map(str, files)))


@pytest.mark.parametrize("text", [DEEP, "[]", "3", "", "\x00"])
def test_damaged_results_are_no_other_game(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    tables.check_place(tmp_path, "x", scripted.small_config())


HOSTILE = "a|b\n\x1b[2J</script>`\u202e\0\ud800\\|"


@pytest.mark.parametrize("protocol", ["streams", "runs"])
def test_names_that_others_chose_stay_in_their_cell(tmp_path, protocol):
    pair = {"mean": 0.5, "se": None}
    row = {"scaffold": "act_write", "lost": 0, "by_position": [0.5], "performance": (0.5, 0, 1),
           "reward": pair, "gain": pair, "stateless": pair, "late_minus_early": pair,
           "cumulative_gain_by_position": {"mean": [0.5]}, "reward_by_task": {HOSTILE: 0.5},
           "gain_by_task": {HOSTILE: 0.5}}
    if protocol == "streams":
        row["gain"] = row["stateless"] = (0.5, 0, 1)
    found = {"protocol": protocol, "setting": HOSTILE, "streams": 1, "trials": 1, "runs": 1,
             "baseline_samples": 1, "instances": [HOSTILE], "policies": {HOSTILE: row},
             "differences": {HOSTILE: {}}, "floors": {}}
    text = tables.save(found, tmp_path, "x")
    assert text.replace("\n", "").isprintable() and (tmp_path / "x.md").read_text() == text
    assert list(json.loads((tmp_path / "x.json").read_text())["policies"]) == [HOSTILE]
    sheets = [[line for line in part.splitlines() if line.startswith("|")]
              for part in text.split("\n\n")]
    for sheet in sheets:  # All rows of a table have the same number of cells.
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in sheet}) <= 1
    assert any(sheets) and tables.announcement(scripted.small_config(), [HOSTILE]).isprintable()


def test_tasks_that_had_no_room_are_counted_aloud(capsys):
    """A context in which no task fits would pass for a policy that solves none."""
    made, kept = games.built(games.Reader(games.counting)), journal.Journal()
    with evaluate._shown(kept, made, distributed.ALONE):
        for position, status in enumerate(("solved", "context_limit", "context_limit")):
            kept.add(journal.Row(**ROW | {"position": position, "status": status, "past": None}))
    assert "2 of 3 tasks ended where their conversation was full" in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["4294967296", "1e30", "-1"])
@pytest.mark.parametrize("option", ["seed", "eval.seed"])
def test_seeds_that_the_samplers_cannot_tell_apart_are_refused(seed, option):
    config = scripted.small_config()
    with pytest.raises(config_lib.ConfigError, match=rf"{option} = "):
        config_lib.override(config, {option: seed})
