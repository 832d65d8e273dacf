"""Whole streams of repairs through the real loop: real repositories, sandbox, tests and grades."""

import asyncio
import dataclasses
import functools
import json
import pathlib

import jax
import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import domain_codebase, prompts_codebase, training_data
from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import environment, streams, trees
from rime_jax.judge import lexical
from rime_jax.learner import batch, credit, mesh, update
from rime_jax.policy import characters, qwen3
from rime_jax.policy import chat as chat_lib
from rime_jax.rollout import collect, loop
from tests import scripted
from tests.envs.codebase import repositories

NAMES = ("alpha", "beta")


@functools.cache
def byte_chat():
    return chat_lib.ChatTokens(characters.byte_tokenizer())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repositories")
    made = dict(zip(NAMES, (repositories.make(folder, name) for name in NAMES), strict=True))
    for name in NAMES:
        (folder / "cache" / "environments").mkdir(parents=True, exist_ok=True)
        repositories.environment(folder / "cache" / "environments" / name)
    tasks = [task for _, own in made.values() for task in own]
    return trees.TreeStore(folder / "cache", tasks, {n: made[n][0] for n in NAMES}), tasks


def stream_of(tasks):
    planned = streams.plan(map(streams.entry, tasks), streams.Shape((6, 6)), 0)
    assert streams.problems(planned, {t.instance_id: streams.entry(t) for t in tasks},
                            streams.Shape((6, 6))) == []
    return planned[0]


def config():
    made = config_lib.default()
    made.rollout.memory_tokens, made.rollout.write_tokens = 1000, 1200
    made.rollout.act_tokens, made.rollout.context_tokens = 2000, 20_000
    made.learner.row_tokens = 20_000
    return made


def domain(store, box, turns=6):
    return dataclasses.replace(
        scripted.domains.make(scripted.small_config()),
        make_env=lambda: environment.CodebaseEnvironment(box, store, turns),
        prompts=prompts_codebase.CodebasePrompts(1000, turns),
        memory_format=prompts_codebase.CodebaseMemory(), words="", memory_truth=None)


def memory_text(call):
    return (f"## Repository knowledge\n- tests are in tests/test_all.py\n- seen {call.position} "
            "modules\n## Lessons and pitfalls\n- run pytest before submitting\n- Check signs first")


def play(store, box, tasks, script, turns=6):
    options = config()
    stream = stream_of(tasks)
    made = domain(store, box, turns)
    chat = byte_chat()
    sampler = scripted.ScriptedSampler(
        lambda call: memory_text(call) if call.role == "write" else script(call, stream),
        20_000, chat)
    context = loop.Context(
        sampler=sampler, judge=lexical.LexicalJudge(made.memory_format), domain=made, chat=chat,
        options=options.rollout, judge_timeout_s=10, temperature=1.0)
    return asyncio.run(collect.collect(context, [stream], 2, (3,)))


def gold(call, stream):
    """Repairs, looks whether it worked, submits; sibling 1 only submits."""
    if call.sibling == 1:
        return repositories.SUBMIT
    name = stream.tasks[call.position].payload.split(".")[0]
    repair = f"sed -i 's/total = a - b/total = a + b/' {name}.py"
    return [f"The sign is wrong.\n```bash\n{repair}\n```",
            "```bash\npython -m pytest -q 2>&1 | tail -2\n```", repositories.SUBMIT][call.turn]


@pytest.fixture(scope="module")
def repaired(store, box):
    return play(*store[:1], box, store[1], gold)


def test_who_repairs_earns_by_turns_and_who_submits_nothing_earns_nothing(repaired):
    good, idle = repaired
    assert [r.reward for r in good.tasks] == [pytest.approx(1 - 2 / 6)] * 12
    assert all(r.status.value == "solved" and r.metrics["tested_before_submit"] for r in good.tasks)
    assert [r.reward for r in idle.tasks] == [0.0] * 12
    assert all(r.status.value == "failed" and r.metrics["blind_submit"] for r in idle.tasks)
    assert good.tasks[0].written.malformed is None and good.tasks[0].verdict is not None


def test_the_writer_alone_is_told_the_grade(repaired):
    chat = byte_chat()
    for record in repaired[0].tasks:
        assert "PASSED" not in chat.decode(record.act.ids.tolist())
        assert "PASSED" in chat.decode(record.write.ids.tolist())


@pytest.mark.parametrize("command", [
    # Breaks the tests; edits the test files; makes pytest itself pass everything.
    "echo 'raise ImportError' >> {name}.py",
    "sed -i 's/assert .*/pass/' tests/test_all.py",
    "printf 'import _pytest.python as p\\np.Function.runtest = lambda self: None\\n' >> {name}.py",
    "printf 'import os\\nos._exit(0)\\n' >> {name}.py",
    "echo 'def pytest_pyfunc_call(pyfuncitem): return True' > conftest.py",
])
def test_changes_that_are_no_repair_earn_nothing(store, box, command):
    name = store[1][0].repository
    env = environment.CodebaseEnvironment(box, store[0], 6)
    try:
        env.reset(streams_lib.Task("t", store[1][0].instance_id))
        env.step(f"```bash\n{command.format(name=name)}\n```")
        assert env.step(repositories.SUBMIT).done
        outcome = env.outcome()
    finally:
        env.close()
    assert (outcome.reward, outcome.solved, outcome.out_of_turns) == (0.0, False, False)
    assert outcome.message.startswith("FAILED")


def test_the_samples_train_a_policy(repaired):
    """Credit, packing and one update on what was played (the first tasks: rows are long)."""
    options = config()
    rewards = training_data.rewards_of(repaired, 2)
    found = credit.credit(rewards, options.reward)
    assert np.all(found.act_advantage[0, 0] > found.act_advantage[0, 1])
    policy = qwen3.Qwen3(qwen3.Qwen3Config(
        vocab_size=byte_chat_size(), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        max_position_embeddings=32_768))
    options.learner.minibatches, options.learner.microbatch_rows = 1, 1
    options.learner.mesh_data = 1
    samples = [s for s in training_data.samples_of(repaired) if s.position < 2]
    longest = max(len(s.ids) for s in samples)
    options.learner.row_tokens = -(-longest // 128) * 128
    learner = update.Learner(policy, options, mesh.make_mesh(options.learner, jax.devices()[:1]))
    batches = batch.make_batches(
        samples, found, options.roles, options.learner, (0, 1),
        learner.local_rows, lambda sizes: sizes)
    state = learner.init({"policy": policy.init(jax.random.key(0))})
    state, metrics = learner.step(state, batches)
    assert np.isfinite(float(metrics["policy/loss"])) and float(metrics["policy/skipped"]) == 0


def byte_chat_size():
    return 3 + 256


def test_a_configuration_makes_the_domain(tmp_path, box):
    """From files of tasks and libraries; repositories of the benchmark are refused."""
    made = [repositories.make(tmp_path, name) for name in ("one", "two", "three", "four")]
    rows = [{
        "instance_id": t.instance_id, "repo": t.repository, "patch": t.setup_patch,
        "FAIL_TO_PASS": list(t.fail_to_pass), "PASS_TO_PASS": list(t.pass_to_pass),
        "problem_statement": t.statement} for _, own in made for t in own]
    options = config_lib.default()
    options.env.domain, options.env.trials = "codebase", 12
    options.env.tasks_file, options.env.libraries_file = (
        str(tmp_path / "tasks.jsonl"), str(tmp_path / "libraries.json"))
    options.env.cache_dir = str(tmp_path / "cache")
    pathlib.Path(options.env.tasks_file).write_text("\n".join(map(json.dumps, rows)))
    pathlib.Path(options.env.libraries_file).write_text(
        json.dumps([vars(library) for library, _ in made]))
    domain = domain_codebase.make(options)
    train, held = (domain.make_stream(s)(0, np.random.default_rng(0)) for s in
                   ("train", "heldout"))
    assert set(train.info["repositories"]).isdisjoint(held.info["repositories"])
    assert [t.segment for t in train.tasks] == [0] * 6 + [1] * 6
    two = [row for row in rows if row["repo"] in held.info["repositories"]]
    pathlib.Path(options.env.tasks_file).write_text("\n".join(map(json.dumps, two)))
    with pytest.raises(ValueError, match="no stream for training.*evaluation alone sees"):
        domain_codebase.make(options).make_stream("train")
    rows[0]["repo"] = "jd__tenacity.0d40e76f"
    pathlib.Path(options.env.tasks_file).write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="for evaluation only"):
        domain_codebase.make(options)
