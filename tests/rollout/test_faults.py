"""Every fault ends in its named status, is counted, and is never trained as a reward of 0."""

import asyncio
import collections
import logging
import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import domains, training_data
from rime_jax.judge import base as judge_base
from rime_jax.judge.lexical import LexicalJudge
from rime_jax.learner import batch as batch_lib
from rime_jax.learner import credit as credit_lib
from rime_jax.memory import CompactMemory
from rime_jax.rollout.metrics import rollout_metrics
from rime_jax.rollout.trajectory import Status
from tests.scripted import ScriptedSampler, play, small_config

SIBLINGS = 4
# Replies that differ, so that a group has a variance to normalise by.
ENDINGS = ("end", "0 bank", "1 bank", "0 ? green")
HANG_S = 3


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Failed attempts are logged as warnings; here they are meant."""
    caplog.set_level(logging.ERROR)


def script(call):
    """The sibling's own first action, then banking until the trial ends."""
    if call.role == "write":
        return "green large"
    return ENDINGS[call.sibling % 4] if call.turn == 0 else ("0 bank", "1 bank")[call.turn % 2]


class FaultyEnvironment:
    """The real environment behind a hook that is called before each of its methods."""

    def __init__(self, real, hook, inline=True):
        self._real, self._hook, self.inline = real, hook, inline
        self._reply = None

    def reset(self, task):
        self._hook("reset", None)
        return self._real.reset(task)

    def step(self, reply):
        self._reply = self._reply or reply
        self._hook("step", self._reply)
        return self._real.step(reply)

    def outcome(self):
        self._hook("outcome", self._reply)
        return self._real.outcome()

    def close(self):
        self._hook("close", self._reply)
        self._real.close()


def play_with(hook, *, inline=True, config=None, **options):
    """Rollouts of `SIBLINGS` siblings in environments with that hook."""
    config = config or small_config()
    make_real = domains.make(config).make_env
    rollouts, _ = play(
        options.pop("script", script), config=config, siblings=SIBLINGS,
        make_env=lambda: FaultyEnvironment(make_real(), hook, inline),
        judge=options.pop("judge", LexicalJudge(CompactMemory())), **options)
    return rollouts


def raising(method, error, first_reply=None):
    """A hook that raises in a method, in every task or in those of one first reply."""

    def hook(called, reply):
        if called == method and first_reply in (None, reply):
            raise error

    return hook


def metrics_of(rollouts):
    return rollout_metrics(rollouts, CompactMemory().parse_items)


def assert_left_out(rollouts, lost):
    """`lost` siblings count nowhere: the others are scored as if they had been alone."""
    config = config_lib.default()
    rewards = training_data.rewards_of(rollouts, SIBLINGS)
    credit = credit_lib.credit(rewards, config.reward)
    there = [g for g in range(SIBLINGS) if g not in lost]
    alone = credit_lib.Rewards(*(a[:, there] for a in (
        rewards.reward, rewards.performance, rewards.exploration, rewards.well_formed,
        rewards.present)), rewards.segments)
    expected = credit_lib.credit(alone, config.reward)
    for name in ("act_advantage", "act_weight", "write_advantage", "write_weight"):
        whole = getattr(credit, name)
        np.testing.assert_array_equal(whole[:, there], getattr(expected, name))
        assert not whole[:, lost].any(), name
    assert not rewards.present[:, lost].any() and np.isnan(rewards.reward[:, lost]).all()
    trained = batch_lib.trainables(training_data.samples_of(rollouts), credit, "token")
    assert trained and not any(sequence.key[1] in lost for sequence in trained)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("method", ["step", "outcome"])
@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError("its own")])
def test_an_environment_that_raises_ends_its_rollout_only(method, error, inline):
    rollouts = play_with(raising(method, error, ENDINGS[1]), inline=inline)
    assert [r.failure for r in rollouts] == [None, Status.ENV_CRASH, None, None]
    assert rollouts[1].tasks == [] and rollouts[1].retried == {Status.ENV_CRASH: 2}
    found = metrics_of(rollouts)
    assert found["failures/env_crash"] == 1 and found["failures/env_timeout"] == 0
    assert found["failures/retried/env_crash"] == 2
    assert_left_out(rollouts, [1])


@pytest.mark.parametrize("retries", [0, 3])
def test_a_task_is_tried_again_at_most_so_often(retries):
    calls = collections.Counter()

    def hook(called, reply):
        calls[called] += 1
        if called == "reset":
            raise OSError("no container")

    config = small_config(rollout__retries=retries)
    rollouts = play_with(hook, config=config)
    assert calls["reset"] == SIBLINGS * (retries + 1) == calls["close"]
    assert all(r.failure is Status.ENV_CRASH and r.tasks == [] for r in rollouts)
    assert metrics_of(rollouts)["failures/env_crash"] == SIBLINGS


def test_an_iteration_without_any_task_trains_nothing():
    rollouts = play_with(raising("reset", OSError()))
    rewards = training_data.rewards_of(rollouts, SIBLINGS)
    credit = credit_lib.credit(rewards, config_lib.default().reward)
    assert training_data.samples_of(rollouts) == []
    assert not credit.act_weight.any() and not credit.write_weight.any()
    found = training_data.credit_metrics(rollouts, rewards, credit)
    assert found["credit/act_samples"] == found["credit/write_samples"] == 0


def test_a_failure_that_a_new_start_mends_is_counted_and_costs_nothing():
    failed = []

    def hook(called, reply):
        if called == "step" and reply == ENDINGS[2] and not failed:
            failed.append(called)
            raise OSError("flaky")

    rollouts = play_with(hook)
    assert [r.failure for r in rollouts] == [None] * SIBLINGS
    assert rollouts[2].retried == {Status.ENV_CRASH: 1}
    assert [len(r.tasks) for r in rollouts] == [3] * SIBLINGS
    found = metrics_of(rollouts)
    assert found["failures/env_crash"] == 0 and found["failures/retried/env_crash"] == 1


def test_a_failure_in_mid_stream_keeps_what_was_played_before():
    """The task before it has no whole reward window, so only its ACT sample can train."""
    steps = collections.Counter()

    def hook(called, reply):
        if called == "outcome" and reply == ENDINGS[0]:
            steps[called] += 1
            if steps[called] > 1:
                raise OSError("after the first task")

    rollouts = play_with(hook)
    assert rollouts[0].failure is Status.ENV_CRASH and len(rollouts[0].tasks) == 1
    credit = credit_lib.credit(
        training_data.rewards_of(rollouts, SIBLINGS), config_lib.default().reward)
    assert not credit.act_weight[0, 0, 1:].any() and not credit.write_weight[0, 0].any()


@pytest.mark.parametrize("inline", [True, False])
def test_an_environment_that_cannot_be_closed_loses_no_result(inline):
    rollouts = play_with(raising("close", OSError("busy")), inline=inline)
    assert all(r.failure is None and len(r.tasks) == 3 for r in rollouts)


@pytest.mark.parametrize("hang", [lambda: time.sleep(HANG_S), threading.Event().wait],
                         ids=["sleep", "wait"])
@pytest.mark.parametrize("method", ["reset", "step", "outcome"])
def test_an_environment_that_hangs_is_left_behind(method, hang):
    def hook(called, reply):
        if called == method and reply in (None, ENDINGS[3]):
            hang()

    config = small_config(rollout__env_timeout_s=0.5, rollout__retries=1)
    rollouts = play_with(hook, inline=False, config=config)
    lost = list(range(SIBLINGS)) if method == "reset" else [3]
    assert [g for g, r in enumerate(rollouts) if r.failure is Status.ENV_TIMEOUT] == lost
    found = metrics_of(rollouts)
    assert found["failures/env_timeout"] == len(lost) and found["failures/env_crash"] == 0
    # A stalled machine may add a timeout that the retry mends.
    assert found["failures/retried/env_timeout"] >= len(lost)
    if method != "reset":
        assert_left_out(rollouts, lost)


def test_a_close_that_hangs_is_left_behind():
    config = small_config(rollout__env_timeout_s=0.1)

    def hook(called, reply):
        if called == "close":
            time.sleep(HANG_S)

    rollouts = play_with(hook, inline=False, config=config)
    assert all(r.failure is None and len(r.tasks) == 3 for r in rollouts)


def test_a_hung_environment_does_not_keep_the_program_from_ending():
    program = """
import threading
from tests.rollout import test_faults as faults
hook = lambda called, reply: threading.Event().wait() if called == "step" else None
config = faults.small_config(rollout__env_timeout_s=0.05, rollout__retries=0)
print(faults.play_with(hook, inline=False, config=config)[0].failure.value)
"""
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, timeout=120,
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "env_timeout"


@pytest.mark.parametrize("role", ["act", "write"])
def test_a_sampler_that_raises_ends_the_rollout(role):
    def failing(call):
        if call.role == role and call.sibling == 2:
            return ConnectionError("server went away")
        return script(call)

    rollouts, sampler = play(failing, siblings=SIBLINGS)
    assert [r.failure for r in rollouts] == [None, None, Status.SAMPLER_ERROR, None]
    assert {s.place.attempt for s in sampler.sessions(role, 0, 2)} == {0, 1, 2}
    assert all(s.closed for s in sampler.opened)
    found = metrics_of(rollouts)
    assert found["failures/sampler_error"] == 1 and found["failures/retried/sampler_error"] == 2
    assert_left_out(rollouts, [2])


def test_a_sampler_that_cannot_open_a_session_ends_the_rollout(monkeypatch):
    real = ScriptedSampler.open

    def refuse(self, role, ids, seed, parent=None):
        if role == "write" and seed[-4] == 1:
            raise ConnectionError("no server")
        return real(self, role, ids, seed, parent)

    monkeypatch.setattr(ScriptedSampler, "open", refuse)
    rollouts, sampler = play(script, siblings=SIBLINGS)
    assert [r.failure for r in rollouts] == [None, Status.SAMPLER_ERROR, None, None]
    assert all(s.closed for s in sampler.opened)


def test_a_new_attempt_is_another_draw_of_the_sampler():
    """It has a seed of its own; the script sees it as another attempt."""
    def failing(call):
        return OSError() if call.attempt < 2 else script(call)

    (rollout,), _ = play(failing)
    assert rollout.failure is None and rollout.retried == {Status.SAMPLER_ERROR: 6}


class BrokenJudge:
    """Fails on the memories of one text by raising, answering None or never answering."""

    def __init__(self, how):
        self._how = how
        self._real = LexicalJudge(CompactMemory())

    async def score(self, before, after):
        if after == "green small":
            if self._how == "raises":
                raise OSError("rate limit")
            if self._how == "None":
                return None
            if self._how == "times out":
                raise TimeoutError
            await asyncio.sleep(60)
        return await self._real.score(before, after)


@pytest.mark.parametrize("how", ["raises", "None", "times out", "hangs"])
def test_a_judge_that_fails_takes_only_its_own_score_away(how):
    def write(call):
        if call.role == "act":
            return script(call)
        return ("green small", "", "green large", "red large try pink")[call.sibling]

    config = small_config(judge__timeout_s=0.1)
    rollouts, _ = play(write, config=config, siblings=SIBLINGS, judge=BrokenJudge(how))
    assert [r.failure for r in rollouts] == [None] * SIBLINGS
    for record in rollouts[0].tasks:
        assert record.verdict is None and record.judge_status is Status.JUDGE_UNAVAILABLE
    assert metrics_of(rollouts)["failures/judge_unavailable"] == 3
    rewards = training_data.rewards_of(rollouts, SIBLINGS)
    assert np.isnan(rewards.exploration[0, 0]).all() and rewards.present.all()
    # The exploration term of the others is that of three siblings; the failed one has none.
    options = config_lib.default().reward
    z_reward, _ = credit_lib.z(rewards.reward, options.std_floor, options.eps)
    z_three, _ = credit_lib.z(rewards.exploration[:, 1:], options.std_floor, options.eps)
    credit = credit_lib.credit(rewards, options)
    np.testing.assert_array_equal(credit.act_advantage[:, 0], z_reward[:, 0])
    np.testing.assert_allclose(credit.act_advantage[:, 1:], z_reward[:, 1:] + 0.3 * z_three)


def test_without_a_judge_nothing_is_unavailable():
    (rollout,), _ = play(script)
    assert all(r.verdict is None and r.judge_status is None for r in rollout.tasks)


def test_the_verdict_type_is_not_confused_with_a_failure():
    """A verdict of zeros is a score of 0, not a missing one."""

    class Zero:
        async def score(self, before, after):
            return judge_base.Verdict((0, 0, 0, 0))

    (rollout,), _ = play(script, judge=Zero())
    rewards = training_data.rewards_of([rollout], 1)
    np.testing.assert_array_equal(rewards.exploration, np.zeros((1, 1, 3)))
