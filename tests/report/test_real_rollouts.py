"""What the report reads of rollouts is what the loop played and the trainer measured."""

import math
import types

import pytest

from rime_jax import measured, memory
from rime_jax.judge import lexical
from rime_jax.report import dumps, statistics
from rime_jax.tracking import texts
from rime_jax.tracking.run_dir import RunDir
from tests import scripted
from tests.report.made import row

SIBLINGS = 4


def reply(call):
    if call.role == "write":
        return "green makes large" if call.sibling else "green green"
    if (call.group, call.sibling, call.position) == (1, 2, 2):
        raise RuntimeError("the sampler is gone")
    return "bank 1" if (call.group + call.sibling + call.position) % 2 else "green on 1"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """(rollouts, metrics of the iteration, rows that were written, rows that the report reads)."""
    config = scripted.small_config(rollout__group_size=SIBLINGS, rollout__retries=0)
    rollouts, _ = scripted.play(
        reply, config=config, streams=scripted.streams_of(config, 3), siblings=SIBLINGS,
        judge=lexical.LexicalJudge(memory.CompactMemory()))
    built = types.SimpleNamespace(config=config, domain=scripted.domains.make(config))
    share = measured.Share(rollouts, {"time/rollout_s": 1.0, "time/update_s": 1.0}, {},
                           {"generated": 1.0, "trained": 1.0, "flops": 1.0})
    found = measured.iteration(built, 1, [share])
    written = list(texts.sample_rows(found.rollouts, found.credit))
    run = RunDir(tmp_path_factory.mktemp("run"))
    run.samples.mkdir()
    read, lost = dumps.read(run.write_samples(1, written))
    assert lost == 0
    return rollouts, found.metrics, written, read


def test_every_field_that_is_written_is_read(played):
    _, _, written, read = played
    assert [own.keys() for own in read] == [own.keys() for own in written]


def test_rows_made_by_hand_have_the_fields_of_real_ones(played):
    *_, read = played
    assert read[0].keys() == row(0, 0, 1).keys()


def test_a_lost_task_is_a_row_with_its_status_and_nothing_else(played):
    rollouts, _, _, read = played
    assert [r.failure for r in rollouts].count(None) == len(rollouts) - 1
    [lost] = [own for own in read if "reward" not in own]
    assert (lost["group"], lost["sibling"], lost["status"]) == (1, 2, "sampler_error")
    assert lost["position"] == len(rollouts[SIBLINGS + 2].tasks) + 1


@pytest.mark.parametrize(("name", "value"), [
    ("reward/mean", lambda own: statistics.number(own, "reward")),
    ("exploration/score", statistics.exploration_score),
    ("status/solved", lambda own: float(own["status"] == "solved")),
])
def test_means_of_whole_groups_are_those_of_the_trainer(played, name, value):
    """The trainer counts tasks alike and the report groups: the same where none is lost."""
    rollouts, _, _, read = played
    whole = [own for own in read if own["group"] != 1]
    values = [value(own) for own in whole]
    assert statistics.over_groups(whole, value).mean == pytest.approx(
        sum(values) / len(values), nan_ok=True)
    tasks = [value(own) for own in read if "reward" in own]
    assert sum(tasks) / len(tasks) == pytest.approx(played[1][name])


def test_improvement_of_each_rollout_is_that_of_the_trainer(played):
    from rime_jax.rollout import metrics

    rollouts, _, _, read = played
    for rollout in rollouts:
        if rollout.failure is None:
            own = [r for r in read if (r["group"], r["sibling"]) == (
                rollout.group, rollout.sibling)]
            assert statistics.improvement(own).mean == pytest.approx(
                metrics.improvement(rollout), nan_ok=True)


def test_weights_say_what_left_the_loss(played):
    *_, read = played
    for own in read:
        if "reward" in own:
            assert own["act_weight"] in (0.0, 1.0) or own["act_weight"] > 0
            assert not math.isnan(own["act_advantage"])
