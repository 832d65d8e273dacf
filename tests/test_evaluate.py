"""The table's numbers against closed forms, and what the players of it are shown."""

import asyncio
import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rime_jax import domains, evaluate, parts
from rime_jax.envs.alchemy import oracle
from tests.scripted import CHAT, ScriptedSampler, small_config, warm_model

NAN = np.nan


@pytest.fixture(scope="module")
def built():
    config = small_config(model__path=warm_model(), eval__streams=6, eval__rollouts=2,
                          eval__bootstrap=200, sampler__slots=8)
    return parts.build(config)


# ---------------------------------------------------------------------- arithmetic


def test_the_interval_of_two_streams_is_its_closed_form():
    """Means of two draws of {0, 1}: 0, 1/2 and 1 with chances 1/4, 1/2, 1/4."""
    assert evaluate.interval(np.array([0.0, 1.0]), 4000) == (0.5, 0.0, 1.0)
    assert evaluate.interval(np.array([0.25, NAN]), 100) == (0.25, 0.25, 0.25)


def test_the_interval_of_many_streams_is_that_of_the_normal_law():
    values = np.random.default_rng(0).normal(3, 2, 400)
    mean, low, high = evaluate.interval(values, 4000)
    half = 1.96 * values.std() / np.sqrt(400)
    assert mean == pytest.approx(values.mean())
    assert low == pytest.approx(mean - half, abs=0.05 * half + 0.01)
    assert high == pytest.approx(mean + half, abs=0.05 * half + 0.01)


def test_without_any_value_there_is_no_interval():
    assert np.isnan(evaluate.interval(np.array([NAN, NAN]), 100)).all()


@given(hnp.arrays(float, st.integers(1, 12), elements=st.floats(-5, 5)), st.integers(0, 3))
def test_an_interval_holds_its_mean_and_ignores_lost_streams(values, lost):
    mean, low, high = evaluate.interval(values, 200)
    assert low - 1e-9 <= mean <= high + 1e-9 or len(values) < 8
    assert values.min() - 1e-9 <= low <= high <= values.max() + 1e-9
    assert evaluate.interval(np.append(values, [NAN] * lost), 200) == (mean, low, high)


def test_statistics_of_a_small_table():
    with_memory = np.array([[[0.0, 0.2, 0.4, 0.6], [0.4, 0.4, NAN, 0.8]],
                            [[NAN, NAN, NAN, NAN], [0.1, 0.1, 0.3, 0.5]]])
    stateless = np.array([[[0.1] * 4, [0.3] * 4], [[NAN] * 4] * 2])
    facts = np.array([[0.5, 1.0], [NAN, NAN]])
    found = evaluate.statistics(
        evaluate.Played(with_memory, stateless, np.full_like(stateless, NAN), facts, lost=1))
    first = (0.3 + (0.4 + 0.4 + 0.8) / 3) / 2
    np.testing.assert_allclose(found["performance"], [first, 0.25])
    np.testing.assert_allclose(found["stateless"], [0.2, NAN])
    np.testing.assert_allclose(found["gain"], [first - 0.2, NAN])
    np.testing.assert_allclose(
        found["improvement"], [(0.5 + 0.8) / 2 - (0.1 + 0.4) / 2, 0.4 - 0.1])
    np.testing.assert_allclose(found["correct_facts"], [0.75, NAN])
    assert np.isnan(found["true_memory"]).all()


def test_differences_are_paired_by_stream():
    """Two policies that differ by a constant differ by it without any doubt."""
    rng = np.random.default_rng(1)
    base = rng.random((8, 2, 4))
    played = {name: evaluate.Played(base + shift, base, base, base[:, :, 0], 0)
              for name, shift in (("initial", 0.0), ("trained", 0.25))}
    found = evaluate.results(played, {}, small_config(eval__bootstrap=200))
    assert found["differences"]["trained - initial"]["gain"] == pytest.approx((0.25,) * 3)
    low, high = found["policies"]["trained"]["performance"][1:]
    assert high - low > 0.05


# ---------------------------------------------------------------------- the table


def test_the_table_has_a_row_for_everyone_and_a_cell_for_every_column(built):
    base = np.random.default_rng(2).random((6, 2, 3))
    one = evaluate.Played(base, base, np.full_like(base, NAN), base[:, :, 0], 0)
    found = evaluate.results({"initial": one, "step 3": one}, evaluate.floors(built),
                             built.config)
    text = evaluate.table(found)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {len(evaluate.COLUMNS) + 2}
    for name in ("**initial**", "**step 3**", "step 3 - initial", "random actions", "bank only",
                 "oracle"):
        assert any(row.startswith(f"| {name} |") for row in rows)
    assert text.startswith(evaluate.setting(built.config)) and "eased variant" in text


def test_the_variant_is_named_and_the_benchmark_only_where_it_is_the_benchmark():
    assert "values hidden" in evaluate.setting(small_config())
    benchmark = dict(
        env__value_display="shown", env__stones=3, env__supply="random", env__max_steps=20,
        env__min_oracle=0, env__end_when_banked=False)
    assert "the benchmark's rules" in evaluate.setting(small_config(**benchmark))
    for name in benchmark:
        eased = {k: v for k, v in benchmark.items() if k != name}
        assert "eased variant" in evaluate.setting(small_config(**eased)), name


def test_results_are_saved_as_json_and_markdown(tmp_path):
    base = np.full((2, 1, 2), NAN)
    one = evaluate.Played(base, base, base, base[:, :, 0], 4)
    found = evaluate.results({"initial": one}, {}, small_config(eval__bootstrap=100))
    evaluate.save(found, tmp_path, "mine")
    saved = json.loads((tmp_path / "mine.json").read_text())
    assert saved["policies"]["initial"]["performance"] == [None] * 3
    assert saved["policies"]["initial"]["lost"] == 4
    assert (tmp_path / "mine.md").read_text() == evaluate.table(found)


# ---------------------------------------------------------------------- who plays what


def test_floors_score_what_their_players_score(built):
    """Bank-only by its definition under hidden values: the starting stones' worth."""
    found = evaluate.floors(built)
    assert set(found) == {"random actions", "bank only"}
    rules = domains.alchemy_rules(built.config.env)
    for s, stream in enumerate(evaluate.held_out_streams(built)):
        for t, task in enumerate(stream.tasks):
            payload = task.payload
            worth = sum((-3, -1, 1, 15)[corner.bit_count()] for corner in payload["trial"].stones)
            best = oracle.best_score(payload["chemistry"], payload["trial"], rules)
            assert found["bank only"][s, 0, t] == pytest.approx(worth / best)


def test_held_out_streams_depend_on_the_evaluations_options_alone(built):
    def streams_with(**values):
        config = small_config(eval__streams=6, **values)
        return evaluate.held_out_streams(dataclasses.replace(
            built, config=config, domain=domains.make(config)))

    same = streams_with(seed=5, name="other", learner__lr=1.0)
    assert same == evaluate.held_out_streams(built) == evaluate.held_out_streams(built)
    assert streams_with(eval__seed=4) != same
    train = built.domain.make_stream("train")
    dealt = {train(i, np.random.default_rng((0, i))).info["chemistry"] for i in range(500)}
    assert not dealt & {s.info["chemistry"] for s in same}


def script(call):
    """A player that banks; the first sibling keeps a memory, the other's is broken."""
    if call.role == "write":
        return "green large" if call.sibling == 0 else "green green"
    return ("0 bank", "1 bank")[call.turn]


def evaluated(built, script=script):
    sampler = ScriptedSampler(script)
    scripted = dataclasses.replace(built, sampler=sampler)
    return asyncio.run(evaluate.play(scripted, {}, 9, built.config.eval.rollouts)), sampler


def test_every_condition_plays_the_same_streams_with_the_memory_it_names(built):
    played, sampler = evaluated(built)
    assert sampler.version == 9
    config = built.config
    tasks = config.eval.streams * config.eval.rollouts * config.env.trials
    own, rest = sampler.opened[: 2 * tasks], sampler.opened[2 * tasks :]
    blank, true = rest[:tasks], rest[tasks:]
    assert {s.place.role for s in own} == {"act", "write"} and len(true) == tasks
    assert {s.place.role for s in rest} == {"act"}
    held_out = evaluate.held_out_streams(built)
    for sessions, memory_of in ((blank, lambda task: ""), (true, built.domain.true_memory)):
        for session in sessions:
            task = held_out[session.place.group].tasks[session.place.position]
            memory = CHAT.text(memory_of(task))
            assert session.opening[: len(memory)] == memory
            assert CHAT.decode(session.opening[len(memory) : len(memory) + 1]) == ";"
    # What banks at once scores the same however much it knows.
    np.testing.assert_array_equal(played.with_memory, played.stateless)
    np.testing.assert_array_equal(played.with_memory, played.true_memory)
    assert played.with_memory.shape == (6, 2, 3) and played.lost == 0


def test_facts_are_those_of_the_last_memory(built):
    played, _ = evaluated(built)
    truth = [built.domain.true_memory(s.tasks[0]) for s in evaluate.held_out_streams(built)]
    right = np.array(["green large" in memory for memory in truth]) / 7
    np.testing.assert_allclose(played.facts, np.stack([right, np.zeros(6)], axis=1))


def test_a_rollout_lost_to_a_failure_is_counted_and_left_out(built):
    def failing(call):
        if call.role == "write" and call.group == 2 and call.sibling == 1:
            return ConnectionError()
        return script(call)

    played, _ = evaluated(built, failing)
    whole, _ = evaluated(built)
    assert played.lost == 1 and np.isnan(played.with_memory[2, 1]).all()
    np.testing.assert_allclose(evaluate.statistics(played)["performance"],
                               evaluate.statistics(whole)["performance"])


def test_evaluating_a_checkpoint_and_the_initial_policy_gives_a_table(built, tmp_path, capsys):
    config = tmp_path / "config.json"
    small = small_config(model__path=warm_model(), eval__streams=2, eval__rollouts=1,
                         eval__bootstrap=100, sampler__slots=8, run_dir=str(tmp_path / "named"))
    config.write_text(json.dumps(small.to_dict()))
    evaluate.main([f"--config={config}"])
    printed = capsys.readouterr().out
    assert "| **initial** |" in printed and "initial.json" in printed
    first = json.loads((tmp_path / "named/eval/initial.json").read_text())
    evaluate.main([f"--config={config}", f"--out={tmp_path / 'again'}"])
    assert json.loads((tmp_path / "again.json").read_text()) == first


def test_a_run_without_a_checkpoint_is_refused_without_a_traceback(tmp_path):
    small = small_config(model__path=warm_model(), sampler__slots=8, learner__microbatch_rows=8)
    (tmp_path / "config.json").write_text(json.dumps(small.to_dict()))
    with pytest.raises(SystemExit) as stop:
        evaluate.main([f"--run={tmp_path}"])
    assert "has no checkpoint yet; train it first" in stop.value.code
