"""One stream in several orders: every number against rewards that are written down here."""

import asyncio
import json
import random
import statistics

import pytest

from rime_jax import config as config_lib
from rime_jax.evaluation import protocols, tables
from tests.evaluation import games

RUNS, SAMPLES = 5, 2
NAMES = [f"s0t{t}" for t in range(games.TASKS)]
# Run → task → reward; task → rewards of the stateless plays.
_RNG = random.Random(7)
REWARDS = [{name: round(_RNG.random(), 3) for name in NAMES} for _ in range(RUNS)]
BASELINE = {name: [round(_RNG.random(), 3) for _ in range(SAMPLES)] for name in NAMES}


def orders():
    """As Continual Learning Bench makes them: two segments of two tasks."""
    found = [NAMES]
    for run in range(1, RUNS):
        rng, order = random.Random(42 + run), []
        for segment in (NAMES[:2], NAMES[2:]):
            shuffled = list(segment)
            rng.shuffle(shuffled)
            order += shuffled
        found.append(order)
    return found


def scripted(session):
    if session.place.role == "write":
        return f"## Facts\n- seen {session.place.position}"
    task = "s0t" + session.text.split(" task ")[-1][0]
    if session.label == 1:
        return str(BASELINE[task][session.place.sibling])
    return str(REWARDS[session.place.group][task])


def built(reply=scripted, **options):
    return games.built(games.Reader(reply), eval__protocol="runs", eval__runs=RUNS,
                       eval__baseline_samples=SAMPLES, **options)


def play(built, **values):
    return asyncio.run(protocols.play(built, 1, **values))


@pytest.fixture(scope="module")
def found():
    made = built()
    return protocols.results({"step 3": play(made)}, made)


def expected():
    """(rewards, gains) of each run, by position."""
    rewards = [[REWARDS[run][name] for name in order] for run, order in enumerate(orders())]
    gains = [[REWARDS[run][name] - statistics.mean(BASELINE[name]) for name in order]
             for run, order in enumerate(orders())]
    return rewards, gains


def curve(rows):
    """Means over runs of the sums up to each position, and their standard errors."""
    sums = [[sum(row[: t + 1]) for row in rows] for t in range(games.TASKS)]
    return ([statistics.mean(at) for at in sums],
            [statistics.stdev(at) / RUNS ** 0.5 for at in sums])


def test_every_run_plays_the_order_of_the_benchmark(found):
    played = found["policies"]["step 3"]["played"]
    assert [[task for task, _ in run] for run in played] == orders()
    assert [dict(run) for run in played] == REWARDS
    assert found["policies"]["step 3"]["baseline"] == BASELINE
    assert found["instances"] == NAMES


@pytest.mark.parametrize("quantity, rows", [
    ("reward", expected()[0]), ("gain", expected()[1])])
def test_cumulative_reward_and_gain_are_those_of_the_rollouts(found, quantity, rows):
    row = found["policies"]["step 3"]
    means, errors = curve(rows)
    by_position = row[f"cumulative_{quantity}_by_position"]
    assert by_position["mean"] == pytest.approx(means)
    assert by_position["se"] == pytest.approx(errors)
    assert row[quantity]["mean"] == pytest.approx(means[-1])


def test_the_error_of_the_gain_holds_that_of_the_baseline(found):
    row = found["policies"]["step 3"]
    variance = sum(statistics.variance(values) / SAMPLES for values in BASELINE.values())
    assert row["stateless"]["mean"] == pytest.approx(
        sum(statistics.mean(values) for values in BASELINE.values()))
    assert row["stateless"]["se"] == pytest.approx(variance ** 0.5)
    assert row["reward"]["se"] == pytest.approx(curve(expected()[0])[1][-1])
    assert row["gain"]["se"] == pytest.approx(
        (curve(expected()[1])[1][-1] ** 2 + variance) ** 0.5)


def test_gain_of_each_task_is_its_mean_reward_less_its_baseline(found):
    for name in NAMES:
        reward = statistics.mean(run[name] for run in REWARDS)
        row = found["policies"]["step 3"]
        assert row["reward_by_task"][name] == pytest.approx(reward)
        assert row["gain_by_task"][name] == pytest.approx(
            reward - statistics.mean(BASELINE[name]))


def test_the_table_shows_the_sums(found, tmp_path):
    text = tables.save(found, tmp_path, "mine")
    row = found["policies"]["step 3"]
    cells = [f"{row['reward']['mean']:.2f} ± {row['reward']['se']:.2f}",
             f"{row['gain']['mean']:+.2f} ± {row['gain']['se']:.2f}",
             f"{row['stateless']['mean']:.2f} ± {row['stateless']['se']:.2f}"]
    assert f"| **step 3** | act_write | {' | '.join(cells)} |" in text
    assert json.loads((tmp_path / "mine.json").read_text())["runs"] == RUNS
    assert (tmp_path / "mine.md").read_text() == text


def test_one_sample_of_the_baseline_leaves_its_error_out(found):
    made = built()
    made.config.eval.baseline_samples = 1
    row = protocols.results({"p": play(made)}, made)["policies"]["p"]
    assert row["stateless"]["se"] != row["stateless"]["se"]  # not known
    gains = [[REWARDS[run][name] - BASELINE[name][0] for name in order]
             for run, order in enumerate(orders())]
    assert row["gain"]["se"] == pytest.approx(curve(gains)[1][-1])


def test_the_baseline_starts_every_task_without_memory_and_the_runs_carry_theirs():
    made = built()
    play(made)
    for session in made.sampler.opened:
        if session.label == 1:
            assert session.place.role == "act" and "seen" not in session.text
        elif session.place.position:
            assert f"seen {session.place.position - 1}" in session.text


@pytest.mark.parametrize("scaffold", ["in_context", "stateless"])
def test_other_scaffolds_are_systems_of_their_own(scaffold):
    made = built()
    found = play(made, scaffold=scaffold)
    assert found.scaffold == scaffold
    assert {session.place.role for session in made.sampler.opened} == {"act"}
    runs = [s for s in made.sampler.opened if s.label == 0]
    assert len(runs) == RUNS * games.TASKS
    for session in runs:
        earlier = session.place.position if scaffold == "in_context" else 0
        assert session.text.count("noted over") == earlier
    assert found.runs == play(built()).runs and found.baseline == BASELINE


def test_what_was_lost_is_named_and_is_no_zero():
    def failing(session):
        if session.label == 0 and session.place.group == 2 and session.place.position == 1:
            return ConnectionError()
        return scripted(session)

    made = built(failing)
    played = play(made)
    assert protocols.curves(played) == {}
    with pytest.raises(config_lib.ConfigError, match=r"step 3: run 2 has no reward.*same command"):
        protocols.results({"step 3": played}, made)


def test_training_curves_are_the_sums_of_the_table(found):
    row = found["policies"]["step 3"]
    assert protocols.curves(play(built())) == pytest.approx(
        {name: row[name]["mean"] for name in ("reward", "gain", "stateless")})
