"""Differences between results are paired by stream, and refused where the games differ."""

import asyncio
import copy
import json

import numpy as np
import pytest

from rime_jax.evaluation import compare, protocols
from tests.evaluation import games


def results(shift, protocol="streams", **options):
    """Of a policy that earns a different amount in each stream, and `shift` more than that."""
    def reply(session):
        if session.place.role == "write":
            return "## Facts\n- a fact"
        base = np.random.default_rng(games.own_stream(session)).random()
        return str(base + (shift if "a fact" in session.text else 0))

    made = games.built(games.Reader(reply), eval__protocol=protocol, **options)
    return protocols.results({"p": asyncio.run(protocols.play(made, 2))}, made)


def test_policies_that_differ_by_a_constant_differ_by_it_without_doubt():
    found = compare.compare(results(0.0), results(0.25))
    # Three of the four tasks read the written memory.
    assert found["performance"] == pytest.approx((0.25 * 3 / 4,) * 3)
    assert found["gain"] == pytest.approx((0.25 * 3 / 4,) * 3)
    assert found["stateless"] == pytest.approx((0, 0, 0))


def test_only_streams_that_both_have_are_paired():
    found = compare.compare(results(0.0, eval__streams=5), results(0.25, eval__streams=2))
    assert found["performance"] == pytest.approx((0.25 * 3 / 4,) * 3)


def test_runs_are_paired_by_task():
    found = compare.compare(results(0.0, "runs"), results(0.2, "runs"))
    mean, low, high = found["reward"]
    # Each task stands first, without a memory, in some of the five orders or in none.
    assert 0 < low <= mean <= high <= 0.2 + 1e-9
    first = results(0.0, "runs")["policies"]["p"]["reward"]["mean"]
    second = results(0.2, "runs")["policies"]["p"]["reward"]["mean"]
    assert mean * games.TASKS == pytest.approx(second - first)


def test_streams_of_one_chemistry_are_drawn_together():
    first, second = results(0.0), results(0.0)
    own = second["units"]["values"]["p"]["performance"]
    second["units"]["values"]["p"]["performance"] = [own[0], own[1], own[2] + 0.3]
    alone = compare.compare(first, second)["performance"]
    for found in (first, second):
        found["units"]["clusters"] = ["a", "b", "b"]
    together = compare.compare(first, second)["performance"]
    assert alone[0] == together[0] == pytest.approx(0.1)
    # Draws of a and b: none, half or all of the tasks are of b, which has 0.15 more on average.
    assert together[1:] == pytest.approx((0.0, 0.15))
    assert alone[2] > together[2]


def test_what_was_lost_in_one_of_them_is_left_out():
    first, second = results(0.0), results(0.25)
    second["units"]["values"]["p"]["performance"][1] = None
    assert compare.compare(first, second)["performance"] == pytest.approx((0.25 * 3 / 4,) * 3)


@pytest.mark.parametrize("change, message", [
    ({"setting": "another"}, "setting is .* in the first and 'another'"),
    ({"trials": 9}, "trials is 4 in the first and 9"),
    ({"protocol": "runs"}, "protocol"),
    ({"units": {"names": ["x"], "clusters": ["x"], "values": {"p": {"gain": [1.0]}}}},
     "no stream in common"),
])
def test_results_of_different_games_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        compare.compare(results(0.0), results(0.0) | change)


def test_the_program_prints_the_differences_and_names_who_is_not_there(tmp_path, capsys):
    for name, shift in (("a", 0.0), ("b", 0.25)):
        found = copy.deepcopy(results(shift))
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    compare.main(files)
    assert "| performance | +0.188 [+0.188, +0.188] |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no policy 'q'; there are \\['p'\\]"):
        compare.main([*files, "--policies", "q", "p"])
    with pytest.raises(SystemExit, match="is a directory; .* is eval/final.json"):
        compare.main([str(tmp_path), files[1]])
    (tmp_path / "old.json").write_text("{}")
    with pytest.raises(SystemExit, match="make it again with rime_jax.evaluate"):
        compare.main([str(tmp_path / "old.json"), files[1]])
