"""The shipped tasks through the whole loop: their libraries, the sandbox, grades, credit, one step.

Marked `network`: the libraries come from the package index (docs/codebase.md has the command).
"""

import asyncio
import base64
import collections
import dataclasses
import os
import pathlib

import jax
import numpy as np
import pytest

from rime_jax import experiment, parts, training_data
from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import interface, published, submission
from rime_jax.learner import batch, credit, mesh, update
from rime_jax.rollout import collect
from tests import scripted

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.environ.get("RIME_NETWORK") != "1",
                       reason="fetches libraries; set RIME_NETWORK=1"),
]

ROOT = pathlib.Path(__file__).parents[3]
SUBMIT = f"echo {interface.SENTINEL}"
AGENTS = ("knows the repair", "submits nothing", "breaks the library", "edits the tests")
GOLD, IDLE, BREAKER, TESTER = range(4)
# The method's letters: tasks of a stream, turns of a task, the improvement's window.
T, TURNS, K = 12, 40, 3


def options():
    # Conversations are long where each byte is a token.
    return experiment.read(str(ROOT / "experiments" / "codebase" / "rime.py"), [
        "model.path=tiny-bytes-v1", "model.dtype=float32", "rollout.group_size=4",
        "rollout.streams_per_step=1", "rollout.act_tokens=16384", "rollout.memory_tokens=1000",
        "rollout.write_tokens=1200", "rollout.context_tokens=32768", "learner.row_tokens=32768",
        "learner.microbatch_rows=1", "learner.mesh_data=1", "learner.mesh_fsdp=1",
        "sampler.slots=8", "learner.lr=1e-3"])


def commands(task, agent, position):
    """What an agent runs in a task, the submission last."""
    path = next(line[6:] for line in task.setup_patch.splitlines() if line.startswith("+++ b/"))
    tests = task.fail_to_pass[0].split("::")[0]
    if agent == GOLD:
        patch = base64.b64encode(task.setup_patch.encode()).decode()
        repair = f"echo {patch} | base64 -d | git apply -R"
        look = f"python -m pytest -q '{task.fail_to_pass[0]}' 2>&1 | tail -3"
        # Does without looking in the second half.
        return [repair, look, SUBMIT] if position < T // 2 else [repair, SUBMIT]
    return {
        IDLE: [SUBMIT],
        BREAKER: [f"echo 'raise ImportError' >> {path}", SUBMIT],
        TESTER: [f"printf 'def test_all():\\n    pass\\n' > {tests}", SUBMIT],
    }[agent]


def memory_text(position):
    return (f"## Repository knowledge\n- tests lie in tests/\n- seen {position} issues\n"
            "## Lessons and pitfalls\n- run pytest before handing in\n- Check the changed function")


@pytest.fixture(scope="module")
def played(box):
    config = options()
    built = parts.build(config)
    tasks = {task.instance_id: task for task in published.tasks()}
    stream = streams_lib.StreamSource(built.domain.make_stream("train"), config.seed).take(1)[0]

    def script(call):
        if call.role == "write":
            return memory_text(call.position)
        own = commands(tasks[stream.tasks[call.position].payload], call.sibling, call.position)
        return f"So much for thinking.\n```bash\n{own[call.turn]}\n```"

    context = dataclasses.replace(
        built.context(1.0, judge=built.judge),
        sampler=scripted.ScriptedSampler(script, config.rollout.context_tokens, built.chat))
    rollouts = asyncio.run(collect.collect(context, [stream], len(AGENTS), (config.seed,)))
    for name, rollout in zip(AGENTS, rollouts, strict=True):
        counted = collections.Counter(record.status.value for record in rollout.tasks)
        print(f"{name:20} {dict(counted)} rewards "
              f"{' '.join(f'{record.reward:.3f}' for record in rollout.tasks)}")
    return config, built, rollouts


def test_each_agent_earns_what_the_rules_say(played):
    config, _, rollouts = played
    assert [len(r.tasks) for r in rollouts] == [T] * 4 and not any(r.failure for r in rollouts)
    assert len({task.payload for task in rollouts[0].stream.tasks}) == T
    assert [task.segment for task in rollouts[0].stream.tasks] == [0] * 6 + [1] * 6
    gold = [1 - 2 / TURNS] * (T // 2) + [1 - 1 / TURNS] * (T // 2)
    assert [r.reward for r in rollouts[GOLD].tasks] == pytest.approx(gold)
    assert all(r.status.value == "solved" for r in rollouts[GOLD].tasks)
    for agent in (IDLE, BREAKER, TESTER):
        assert [r.reward for r in rollouts[agent].tasks] == [0.0] * T
        assert all(r.status.value == "failed" for r in rollouts[agent].tasks)


def test_what_is_counted_tells_the_agents_apart(played):
    _, _, rollouts = played
    half = T // 2
    tested = [r.metrics["tested_before_submit"] for r in rollouts[GOLD].tasks]
    assert tested == [1.0] * half + [0.0] * half
    assert all(r.metrics["blind_submit"] for r in rollouts[IDLE].tasks)
    assert all(r.metrics["stripped_files"] == 1 for r in rollouts[TESTER].tasks)


def test_the_judge_scores_every_memory_and_the_grade_reaches_the_writer_alone(played):
    _, built, rollouts = played
    for record in (record for rollout in rollouts for record in rollout.tasks):
        assert record.verdict is not None and record.written.malformed is None
        act, write = (built.chat.decode(s.ids.tolist()) for s in (record.act, record.write))
        assert "PASSED" not in act and "FAILED:" not in act
        assert ("PASSED:" if record.status.value == "solved" else "FAILED:") in write


def test_credit_follows_the_definitions(played):
    config, _, rollouts = played
    found = credit.credit(training_data.rewards_of(rollouts, 4), config.reward)
    r = np.array([[record.reward for record in rollout.tasks] for rollout in rollouts])
    # Three earn nothing: whoever earns something stands sqrt(3) deviations above the mean. All
    # write the same memories, so that exploration tells nobody apart.
    expected = np.tile([[np.sqrt(3)]] + [[-1 / np.sqrt(3)]] * 3, T)
    np.testing.assert_allclose(found.act_advantage[0], expected, atol=1e-4)
    for t in range(T - 1):
        after = r[:, t + 1 : t + 1 + K].mean(1)
        before = r[:, max(0, t - K + 1) : t + 1].mean(1)
        np.testing.assert_allclose(found.improvement[0, :, t], after - before, atol=1e-9)


def test_the_samples_make_one_step_of_the_small_policy(played):
    config, built, rollouts = played
    found = credit.credit(training_data.rewards_of(rollouts, 4), config.reward)
    samples = training_data.samples_of(rollouts)
    longest = max(len(s.ids) for s in samples)
    options = config.learner
    options.row_tokens = -(-longest // 128) * 128
    learner = update.Learner(built.policy, config, mesh.make_mesh(options, jax.devices()[:1]))
    batches = batch.make_batches(samples, found, config.roles, options, (0, 1),
                                 learner.local_rows, lambda sizes: sizes)
    state = learner.init(built.initial_sets())
    before = jax.device_get(state.params["policy"])
    state, metrics = learner.step(state, batches, learner.reference(built.initial_params()))
    values = {name: float(value) for name, value in metrics.items()}
    print(f"{len(samples)} samples, rows of {options.row_tokens} tokens: loss "
          f"{values['policy/loss']:.5f}, gradient norm {values['policy/grad_norm']:.4f}")
    assert np.isfinite(values["policy/loss"]) and values["policy/skipped"] == 0
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), before,
                           jax.device_get(state.params["policy"]))
    assert all(jax.tree.leaves(changed))


def test_the_gold_patches_touch_no_tests():
    for task in published.tasks():
        assert submission.strip(task.setup_patch).stripped == (), task.instance_id
