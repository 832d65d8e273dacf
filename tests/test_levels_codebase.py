"""Pass rates by strategy: a scripted policy on made-up repositories, and the file they go to."""

import asyncio
import collections
import dataclasses
import json

import pytest

from rime_jax import config as config_lib
from rime_jax import domain_codebase, levels_codebase
from rime_jax.envs.codebase import environment, levels, streams, trees
from rime_jax.policy import characters
from rime_jax.policy import chat as chat_lib
from rime_jax.rollout import context as context_lib
from tests import scripted
from tests.envs.codebase import repositories

Entry, Result = streams.Entry, levels.Result


@pytest.fixture(scope="module")
def box():
    made = repositories.box()
    yield made
    made.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("levels")
    library, tasks = repositories.make(folder, "alpha")
    repositories.environment(folder / "cache" / "environments" / "alpha")
    tasks = [dataclasses.replace(task, strategy="op_swap" if i < 2 else "ctrl_shuffle")
             for i, task in enumerate(tasks[:3])]
    return trees.TreeStore(folder / "cache", tasks, {"alpha": library}), tasks


class Built:
    """What `measure` needs of `parts.Parts`."""

    def __init__(self, box, made, script):
        store, _ = made
        self.config = config_lib.default()
        self.config.rollout.act_tokens = 2000
        chat = chat_lib.ChatTokens(characters.byte_tokenizer())
        self.sampler = scripted.ScriptedSampler(script, 20_000, chat)
        domain = domain_codebase.Domain(
            make_env=lambda: environment.CodebaseEnvironment(box, store, 4),
            prompts=domain_codebase.prompts_codebase.CodebasePrompts(1000, 4),
            memory_format=domain_codebase.prompts_codebase.CodebaseMemory(), make_stream=None,
            judge_words=None, words="", memory_truth=None, true_memory=None,
            false_words=lambda memory: {}, floors={})
        self._context = context_lib.Context(
            sampler=self.sampler, judge=None, domain=domain, chat=chat,
            options=self.config.rollout, judge_timeout_s=None, temperature=1.0)

    def context(self, temperature, given_memory):
        return dataclasses.replace(
            self._context, temperature=temperature, given_memory=given_memory)


def plays(made, broken=()):
    """Repairs with sibling 0 always, with sibling 1 the first task alone; tasks may be broken."""
    def script(call):
        assert call.role == "act"
        if call.group in broken:
            return RuntimeError("the server is gone")
        if call.sibling == 1 and call.group > 0 or call.turn:
            return repositories.SUBMIT
        return "```bash\nsed -i 's/total = a - b/total = a + b/' alpha.py\n```"
    return script


def measure(box, made, journal, broken=()):
    built = Built(box, made, plays(made, broken))
    entries = [streams.entry(task) for task in made[1]]
    lost = asyncio.run(levels_codebase.measure(built, entries, journal, 2, 2))
    return lost, built


def test_pass_rates_count_episodes_by_strategy_and_a_run_goes_on(box, made, tmp_path):
    file, setting = tmp_path / "levels.tasks.jsonl", {"policy": "script", "samples": 2}
    names = [task.instance_id for task in made[1]]
    lost, _ = measure(box, made, levels.Journal(file, setting), broken=(1,))
    assert lost == [names[1]]
    assert levels.Journal(file, setting).results == {
        names[0]: Result(names[0], "op_swap", 2, 2),
        names[2]: Result(names[2], "ctrl_shuffle", 1, 2)}
    with open(file, "ab") as damaged:
        damaged.write(b'{"instance_id": "cut o')
    journal = levels.Journal(file, setting)
    lost, built = measure(box, made, journal)
    assert lost == [] and {s.place.group for s in built.sampler.opened} == {1}
    found = levels.summary(setting, list(journal.results.values()))
    assert found["strategies"] == {
        "op_swap": {"pass_rate": 0.75, "solved": 3, "played": 4, "tasks": 2, "level": "easy"},
        "ctrl_shuffle": {"pass_rate": 0.5, "solved": 1, "played": 2, "tasks": 1, "level": "easy"}}
    out = tmp_path / "levels.json"
    levels.write(out, found)
    assert levels.read(out) == {"op_swap": 0.75, "ctrl_shuffle": 0.5}
    assert levels.table(found).splitlines()[0].split()[:2] == ["op_swap", "0.75"]


def test_nobody_sees_a_memory_and_nobody_writes_one(box, made, tmp_path):
    _, built = measure(box, made, levels.Journal(tmp_path / "j", {}))
    assert {s.place.role for s in built.sampler.opened} == {"act"}
    assert all("(empty)" in built.sampler.chat.decode(s.opening) for s in built.sampler.opened)


def test_results_of_other_options_are_not_mixed(tmp_path):
    file = tmp_path / "j"
    levels.Journal(file, {"policy": "a", "samples": 2}).add(Result("x", "op_swap", 1, 2))
    before = file.read_bytes()
    with pytest.raises(levels.LevelsError, match=r"other options \(samples\)"):
        levels.Journal(file, {"policy": "a", "samples": 3})
    file.write_text("something else\n")
    with pytest.raises(levels.LevelsError, match="holds no results"):
        levels.Journal(file, {"policy": "a", "samples": 2})
    assert file.read_text() == "something else\n" and before.count(b"\n") == 2


def test_what_changes_the_policy_or_the_tasks_is_part_of_the_setting():
    config = config_lib.default()
    first = levels_codebase.setting(config, "p", 4)
    assert json.loads(json.dumps(first)) == first
    for name, value, same in [
            ("env.max_steps", 3, False), ("rollout.act_tokens", 9, False),
            ("sampler.kind", "openai", False), ("model.path", "x", False), ("seed", 1, False),
            ("env.cache_dir", "x", True), ("sampler.slots", 8, True), ("learner.lr", 0.1, True)]:
        changed = config_lib.default()
        *parents, last = name.split(".")
        node = changed
        for parent in parents:
            node = node[parent]
        node[last] = value
        assert (levels_codebase.setting(changed, "p", 4) == first) == same, name


def test_tasks_are_drawn_from_every_strategy():
    entries = [Entry(f"{s}-{i}", "r", s) for s in ("op_swap", "remove_loop") for i in range(9)]
    few = levels.chosen(reversed(entries), 2)
    assert collections.Counter(e.strategy for e in few) == {"op_swap": 2, "remove_loop": 2}
    assert few == levels.chosen(entries, 2) and len(levels.chosen(entries, 0)) == 18


@pytest.mark.parametrize("text", [
    "", "[]", "{}", '{"strategies": {"a": 1}}', '{"strategies": {"a": {"pass_rate": 2}}}',
    '{"strategies": {"a": {"pass_rate": true}}}', '{"strategies": {"a": {"pass_rate": NaN}}}'])
def test_a_file_that_is_no_levels_is_named(tmp_path, text):
    file = tmp_path / "levels.json"
    file.write_text(text)
    with pytest.raises(levels.LevelsError, match="levels.json"):
        levels.read(file)


def test_streams_go_by_measured_levels(tmp_path, box):
    """With the rates of the study turned around, so are the segments."""
    turned = {name: 1 - rate for name, rate in streams.PASS_RATES.items()}
    rows = {name: {"pass_rate": rate} for name, rate in turned.items()}
    (tmp_path / "levels.json").write_text(json.dumps({"strategies": rows}))
    options = config_lib.default()
    options.env.domain, options.env.trials = "codebase", 12
    options.env.levels_file = str(tmp_path / "levels.json")
    options.env.cache_dir = str(tmp_path)
    tasks = domain_codebase.published.tasks()
    strategies = {t.instance_id: streams.entry(t).strategy for t in tasks}
    stream = domain_codebase.make(options).make_stream("train")(0, None)
    for segment in (0, 1):
        rates = [turned.get(strategies[t.payload], streams.UNMEASURED)
                 for t in stream.tasks if t.segment == segment]
        assert rates == sorted(rates, reverse=True)
