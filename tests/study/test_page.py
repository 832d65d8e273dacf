"""docs/study.md says what docs/study/results.json holds, and its tables say what they claim."""

import pathlib
import re

import pytest

from rime_jax import config as config_lib
from rime_jax.study import __main__ as study
from rime_jax.study import page, plan, results, statistics, tables
from tests.study import made

ROOT = pathlib.Path(__file__).parents[2]
EASED = plan.SETTINGS["eased"]


def columns(table):
    head, _, *rows = [line[2:-2].split(" | ") for line in table.splitlines()]
    return [dict(zip(head, row, strict=False)) for row in rows]


def test_the_generated_parts_of_the_page_are_those_of_the_recorded_results():
    text = (ROOT / page.PAGE).read_text()
    assert page.written(text, results.load(ROOT / page.RESULTS)) == text


def test_the_recorded_runs_are_those_of_the_plan():
    recorded = results.load(ROOT / page.RESULTS)
    for row in recorded.rows.values():
        setting = plan.SETTINGS[row.setting]
        assert row.warm in setting.warm_starts
        assert row.cell in (results.WARM_START, *setting.cells)
        assert {len(own) for own in row.values.values()} == {
            len(recorded.chemistries[row.setting])}
    assert (ROOT / page.RESULTS).stat().st_size < 1_500_000


def test_every_table_has_a_row_for_every_cell_that_was_run():
    found = made.study()
    cells = columns(tables.cells(found, EASED))
    assert [row["cell"] for row in cells] == [
        "warm start", "**RIME**", *(plan.CELLS[name].title for name in plan.MAIN[1:])]
    assert [row["runs"] for row in cells] == ["2", "6", "6", "6", "6"]
    assert float(cells[1]["gain"]) == pytest.approx(0.4, abs=0.02)
    assert len(columns(tables.differences(found, EASED))) == 3
    assert len(columns(tables.swaps(found, EASED))) == 4
    assert len(columns(tables.positions(found, EASED))) == 5
    assert [row["pairs"] for row in columns(tables.exploration(found, EASED))] == ["6", "6"]
    assert [row["items kept"] for row in columns(tables.memories(found, EASED))] == [
        "", *[".10 → .20"] * 4]


def test_orderings_appear_where_both_intervals_over_other_runs_are_on_one_side():
    found = made.study()
    said = {row["the post's ordering"].split(":")[0]: table_row.split(" | ")
            for row, table_row in zip(columns(tables.orderings(found, EASED)),
                                      tables.orderings(found, EASED).splitlines()[2:], strict=True)}
    assert "**appears**" in said["RIME > writer untrained"]
    assert "**appears**" in said["RIME > warm start"]
    assert not {"**appears**", "**the opposite**"} & set(said["RIME > exploration off"])


@pytest.mark.parametrize(("wide", "says"), [
    ((0.01, 0.2), "**appears**"), ((-0.2, -0.01), "**the opposite**"),
    ((-0.04, 0.04), "no difference of .05"), ((-0.04, 0.06), "cannot be told"),
    ((float("nan"),) * 2, "one pair; other chemistries"),
])
def test_a_verdict_is_that_of_the_wider_interval(wide, says):
    found = statistics.Estimate(0.0, 3, (0, 0), wide, wide, {})
    assert tables.verdict(found) == says


def test_numbers_have_a_minus_sign_and_no_leading_zero():
    assert [tables._plain(x) for x in (0.5, -0.0312, 1.25, -0.0001)] == [".500", "−.031", "1.250",
                                                                       ".000"]
    assert [tables._signed(x) for x in (0.5, -0.03)] == ["+.500", "−.030"]


def test_the_page_is_written_between_its_marks_and_again_the_same():
    text = "a\n<!-- generated: cells -->\nold\n<!-- end -->\nb\n"
    once = page.written(text, made.study())
    assert once.startswith("a\n") and once.endswith("b\n") and "old" not in once
    assert "| **RIME** | 6 |" in once and page.written(once, made.study()) == once
    with pytest.raises(config_lib.ConfigError, match="'nothing'"):
        page.written(text.replace("cells", "nothing"), made.study())


def test_a_study_is_summed_up_beside_the_recorded_one(tmp_path, monkeypatch, capsys):
    recorded = tmp_path / "recorded.json"
    results.save(made.study(), recorded)
    monkeypatch.setattr(page, "RESULTS", recorded)
    made.write_run(tmp_path)
    study.summarise(tmp_path)
    said = capsys.readouterr().out
    assert said.count("| eased | RIME | 1 |") == 1
    (row,) = [row for row in said.splitlines() if row.startswith("| eased | RIME | 1 |")]
    assert re.search(r"[01] of 1 there", row)
    assert (tmp_path / "study.md").read_text() in said
    assert len(results.load(tmp_path / "results.json").rows) == 2
