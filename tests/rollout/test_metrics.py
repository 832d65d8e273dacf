"""The curves of an iteration against plain numpy on small made-up rollouts."""

import dataclasses
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rime_jax.judge.base import CRITERIA, Verdict
from rime_jax.judge.lexical import LexicalJudge
from rime_jax.memory import CompactMemory
from rime_jax.rollout import metrics
from rime_jax.rollout.trajectory import Rollout, Status
from rime_jax.streams import Stream, Task
from tests.scripted import play, small_config

PARSE = CompactMemory().parse_items
ENDS = ("end", "0 bank", "bank bank", "0 ? green")
MEMORIES = ("green large", "", "green green", "green large try pink")


def script(call):
    if call.role == "write":
        return MEMORIES[call.sibling]
    return ENDS[call.sibling] if call.turn == 0 else ("0 bank", "1 bank")[call.turn % 2]


@pytest.fixture(scope="module")
def rollouts():
    return play(script, config=small_config(), siblings=4, judge=LexicalJudge(CompactMemory()))[0]


@pytest.fixture(scope="module")
def found(rollouts):
    return metrics.rollout_metrics(rollouts, PARSE)


def test_means_are_those_of_all_tasks(rollouts, found):
    records = [r for rollout in rollouts for r in rollout.tasks]
    assert found["reward/mean"] == pytest.approx(np.mean([r.reward for r in records]))
    assert found["performance/mean"] == pytest.approx(np.mean([r.performance for r in records]))
    assert found["act/turns"] == np.mean([r.turns for r in records])
    assert found["memory/tokens"] == np.mean([r.write.mask.sum() for r in records])
    assert found["exploration/score"] == np.mean([r.verdict.score for r in records])
    for i, name in enumerate(CRITERIA):
        assert found[f"exploration/{name}"] == np.mean([r.verdict.criteria[i] for r in records])


def test_values_by_position_are_means_over_rollouts_counted_from_one(rollouts, found):
    for t in range(3):
        rewards = [r.tasks[t].reward for r in rollouts]
        assert found[f"reward/at_{t + 1}"] == pytest.approx(np.mean(rewards))
        scores = [r.tasks[t].verdict.score for r in rollouts]
        assert found[f"exploration/at_{t + 1}"] == pytest.approx(np.mean(scores))
    assert "reward/at_4" not in found and "reward/at_0" not in found


def test_the_statuses_of_all_tasks_add_up_to_one(found):
    shares = {k: v for k, v in found.items() if k.startswith("status/")}
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == {f"status/{s}" for s in (
        "solved", "failed", "out_of_turns", "context_limit", "format_errors")}


def test_memories_are_measured(found):
    assert found["memory/well_formed"] == 0.75 and found["memory/malformed/grammar"] == 0.25
    assert found["memory/items"] == 0.75  # 1, 0, 0, 2
    # Six later tasks begin with items and all of them are kept; the others begin with none.
    assert found["memory/retention_exact"] == found["memory/retention_fuzzy"] == 1


def test_every_failure_has_its_curve_although_nothing_failed(found):
    for name in ("env_crash", "env_timeout", "sampler_error"):
        assert found[f"failures/{name}"] == found[f"failures/retried/{name}"] == 0
    assert found["failures/judge_unavailable"] == 0


def test_lost_rollouts_are_counted_and_nothing_else_is_said_of_them():
    stream = Stream("s", (Task("t", None),))
    lost = [Rollout(stream, 0, i, [], Status.ENV_TIMEOUT, {Status.ENV_TIMEOUT: 2})
            for i in range(3)]
    found = metrics.rollout_metrics(lost, PARSE)
    assert found.pop("failures/env_timeout") == 3
    assert found.pop("failures/retried/env_timeout") == 6
    assert set(found.values()) == {0} and all(name.startswith("failures/") for name in found)


def test_what_has_no_value_is_left_out_and_not_written_as_zero():
    rollouts, _ = play(script, config=small_config(), siblings=1)
    found = metrics.rollout_metrics(rollouts, PARSE)
    assert not any(name.startswith("exploration/") for name in found)
    assert all(np.isfinite(value) for value in found.values())


def rollout_of(performance):
    tasks = [types.SimpleNamespace(performance=p) for p in performance]
    stream = Stream("s", tuple(Task(str(t), None) for t in range(len(performance))))
    return Rollout(stream, 0, 0, tasks, None, {})


@given(st.data())
def test_places_in_a_segment_and_exposure_are_plain_means(data):
    """Streams of 2 + 3 tasks, some cut short, against loops over the definitions."""
    segments = (0, 0, 1, 1, 1)
    rollouts = []
    for group in range(3):
        stream = Stream("s", tuple(Task(str(t), None, s) for t, s in enumerate(segments)),
                        {"pass": data.draw(st.integers(0, 2))})
        for sibling in range(2):
            reward = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=5))
            records = [types.SimpleNamespace(
                task=task, reward=r, performance=r if r else None,
                status=Status.SOLVED if r == 1 else Status.FAILED)
                for task, r in zip(stream.tasks, reward, strict=False)]
            rollouts.append(Rollout(stream, group, sibling, records, None, {}))
    # From 0 and in front of each task: its place from 1.
    place = (1, 2, 1, 2, 3)
    every = [(r, t, record) for r in rollouts for t, record in enumerate(r.tasks)]
    found = metrics._by_place_in_segment(rollouts)
    for k in (1, 2, 3):
        own = [record for _, t, record in every if place[t] == k]
        solved = [record.reward == 1 for record in own]
        scored = [record.performance for record in own if record.performance is not None]
        pairs = [(a.tasks[t].reward, b.tasks[t].reward)
                 for a, b in zip(rollouts[::2], rollouts[1::2], strict=True) for t in range(5)
                 if place[t] == k and min(len(a.tasks), len(b.tasks)) > t]
        for name, values in (("solved", solved), ("performance", scored),
                             ("gradient", [a != b for a, b in pairs])):
            said = found.get(f"segment/{name}_at_{k}", np.nan)
            assert said == pytest.approx(np.mean(values) if values else np.nan, nan_ok=True)
    met = metrics._by_exposure(rollouts)
    for name, again in (("first", False), ("repeated", True)):
        values = [record.performance for r, _, record in every
                  if (r.stream.info["pass"] > 0) == again and record.performance is not None]
        assert met[f"exposure/{name}_performance"] == pytest.approx(
            np.mean(values) if values else np.nan, nan_ok=True)


@pytest.mark.parametrize(("performance", "expected"), [
    ([0.0, 0.2, 0.6, 0.8], 0.6),
    ([0.1, None, 0.5, 0.7], 0.5),
    ([0.1, 0.2, 0.6], (0.2 + 0.6) / 2 - 0.1),
    ([0.3], np.nan),
    ([None, None, 0.5, 0.7], np.nan),
])
def test_improvement_is_the_later_half_minus_the_earlier(performance, expected):
    assert metrics.improvement(rollout_of(performance)) == pytest.approx(expected, nan_ok=True)


@given(hnp.arrays(float, (2, 5, 3), elements=st.floats(-3, 3)), st.integers(0, 2**32 - 1))
def test_within_group_correlation_is_that_of_the_residuals(x, seed):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=x.shape) + x
    offset = 100 * rng.normal(size=(2, 1, 3))
    a, b = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    found = metrics.within_group_correlation(x + offset, y - offset)
    if np.abs(a).max() > 1e-3:
        assert found == pytest.approx(np.corrcoef(a.ravel(), b.ravel())[0, 1], abs=1e-6)


def test_within_group_correlation_leaves_pairs_without_a_value_out():
    x = np.array([[[1.0], [2.0], [3.0], [np.nan]]])
    y = np.array([[[2.0], [4.0], [6.0], [-50.0]]])
    assert metrics.within_group_correlation(x, y) == pytest.approx(1)
    assert np.isnan(metrics.within_group_correlation(x, np.ones_like(x)))


def test_the_malformed_rate_is_split_by_the_reward_before():
    """A writer that breaks its memory exactly after good tasks shows at the high end."""
    rollouts, _ = play(script, config=small_config(), siblings=4)
    made = []
    for rollout in rollouts:
        tasks = []
        for t, record in enumerate(rollout.tasks):
            broken = dataclasses.replace(record.written, malformed="grammar" if t == 2 else None)
            tasks.append(dataclasses.replace(record, performance=(0.1, 0.3, 0.9)[t],
                                             written=broken))
        made.append(dataclasses.replace(rollout, tasks=tasks))
    found = metrics.rollout_metrics(made, PARSE)
    rates = [found[f"memory/malformed_after_{n}_reward"] for n in ("low", "middle", "high")]
    assert rates == [0, 0, 1]


def test_the_truth_about_memories_is_averaged(rollouts):
    found = metrics.rollout_metrics(
        rollouts, PARSE, lambda task, items: {"share": len(items) / 2})
    assert found["memory/share"] == 0.375


def test_a_verdict_counts_where_it_is(rollouts):
    judged = dataclasses.replace(rollouts[0], tasks=[
        dataclasses.replace(rollouts[0].tasks[0], verdict=Verdict((2, 0, 1, 1))),
        dataclasses.replace(rollouts[0].tasks[1], verdict=None,
                            judge_status=Status.JUDGE_UNAVAILABLE)])
    found = metrics.rollout_metrics([judged], PARSE)
    assert found["exploration/score"] == 0.5 and found["failures/judge_unavailable"] == 1
    assert "exploration/at_2" not in found
