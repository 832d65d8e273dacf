"""Nothing of the held-out chemistries reaches training, and nothing but memory crosses tasks."""

import asyncio
import functools
import itertools
import json
import pathlib

import numpy as np
import pytest

from rime_jax import domains, experiment, judges, warm_start
from rime_jax.envs.alchemy import demonstrations, streams
from rime_jax.evaluation import heldout, protocols
from rime_jax.judge import rubric
from rime_jax.study import page, plan, results
from rime_jax.study.results import WARM_START
from tests import scripted
from tests.evaluation import games
from tests.judge.stub import stub_in_thread

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = pytest.mark.parametrize("setting", plan.SETTINGS.values(), ids=lambda s: s.name)


def of(setting, cell):
    return experiment.read(f"{ROOT}/{cell.source(setting.changes)}")


def held_out(config):
    """Of the evaluation's streams: chemistry → what must not occur elsewhere (`secret`)."""
    source = domains.make(config).make_stream("heldout")
    dealt = [source(i, np.random.default_rng(0)) for i in range(config.eval.streams)]
    return {s.info["chemistry"]: secret(config, s.tasks[0].payload["chemistry"]) for s in dealt}


def secret(config, chemistry):
    """All facts about it, or, where graphs are held out (which share facts), its graph."""
    return chemistry.graph if config.env.hold_out == "graphs" else truth(chemistry)


@functools.cache
def truth(chemistry):
    return frozenset(demonstrations.true_facts(chemistry).items())


@pytest.fixture
def one_trial(monkeypatch):
    """Every task of a chemistry has the same trial, for speed; the chemistry is drawn before it."""
    draw, drawn = streams.draw_trial, {}

    def once(rng, chemistry, rules):
        if (chemistry, rules) not in drawn:
            drawn[chemistry, rules] = draw(rng, chemistry, rules)
        return drawn[chemistry, rules]

    monkeypatch.setattr(streams, "draw_trial", once)


@SETTINGS
def test_no_training_stream_is_of_a_held_out_chemistry_or_graph(
        setting, one_trial):
    configs = [of(setting, plan.CELLS[cell]) for cell in setting.cells]
    # Streams depend on the game and the seed alone; the i-th is the same in longer runs.
    needed: dict[tuple[str, int], tuple] = {}
    for config in configs:
        n_streams = config.steps * config.rollout.streams_per_step
        for seed in setting.seeds:
            key = json.dumps(config.env.to_dict()), config.seed + seed
            needed[key] = max(needed.get(key, (0, config)), (n_streams, config), key=lambda x: x[0])
    # The chemistries are those of the game, however long its streams.
    evaluated = held_out(configs[0])
    assert len(evaluated) >= 64
    for (_, seed), (n_streams, config) in needed.items():
        source = domains.make(config).make_stream("train")
        dealt = [source(i, np.random.default_rng((seed, i))) for i in range(n_streams)]
        shown = {s.info["chemistry"]: secret(config, s.tasks[0].payload["chemistry"])
                 for s in dealt}
        assert len(shown) > 64
        assert not evaluated.keys() & shown.keys()
        assert not set(evaluated.values()) & set(shown.values())


@SETTINGS
def test_no_demonstration_of_a_warm_start_is_of_a_held_out_chemistry_or_graph(
        setting, one_trial, monkeypatch):
    shown, demonstrate = set(), demonstrations.demonstrate

    def recorded(chemistry, *rest):
        shown.add(chemistry)
        return demonstrate(chemistry, *rest)

    monkeypatch.setattr(demonstrations, "demonstrate", recorded)
    for options in setting.warm_starts.values():
        config = experiment.read(f"{ROOT}/experiments/alchemy/models/warm_start.py",
                                 [*setting.changes, *(options or ())])
        for clean in (True, False):
            made = warm_start.demonstrated_sequences(
                config, scripted.CHAT, clean, np.random.default_rng((config.seed, 1)))
            assert len(list(itertools.islice(made, 300))) == 300
    assert len(shown) > 64
    assert not {secret(config, chemistry) for chemistry in shown} & set(held_out(config).values())


def test_the_judge_is_sent_the_two_memories_and_nothing_else(monkeypatch):
    """Every request is the one that the memories alone make, whatever was played."""
    config = scripted.small_config()

    def script(call):
        if call.role == "write":
            return ("green large", "blue small best large bright pointy", "")[call.position]
        return ("0 bank", "1 bank", "end")[call.turn]

    with stub_in_thread(lambda body: "fine") as stub:
        config.judge.kind, config.judge.model = "server", "a-judge"
        config.judge.urls = (stub.url,)
        judge = judges.make(config, domains.make(config), None)
        rollouts, _ = scripted.play(
            script, config=config, streams=scripted.streams_of(config, 2), judge=judge)
    changes = {(record.memory_before, record.memory_after)
               for rollout in rollouts for record in rollout.tasks}
    words = domains.make(config).judge_words
    expected = [rubric.prompt(*change, words) for change in changes]
    sent = [body["messages"] for body in stub.requests]
    assert sorted(map(json.dumps, sent)) == sorted(map(json.dumps, expected)) and len(sent) >= 3
    for body in stub.requests:
        assert body.keys() == {"model", "messages", "temperature", "response_format", "headers"}


@SETTINGS
def test_with_memory_blanked_nothing_of_an_earlier_task_reaches_a_later_one(setting):
    """Each conversation opens as that of the same task at the head of a stream, whatever the
    writer wrote before; so the gain is memory's."""
    def reply(session):
        if session.place.role == "write":
            return "green large"
        return ("0 bank", "1 bank", "end")[len(session.generated)]

    config = of(setting, plan.CELLS["rime"])
    values = {"eval__streams": 4, "eval__rollouts": 1} | {
        f"env__{name}": value for name, value in config.env.items()}
    sampler = games.Reader(reply, chat=scripted.CHAT)
    built = games.built(sampler, domains.make(config), rollout__memory_tokens=22,
                        rollout__write_tokens=24, **(values | {"env__trials": config.env.trials}))
    asyncio.run(protocols.play(built, 1))
    prompts = built.domain.prompts
    dealt = heldout.held_out_streams(built)
    opened = {}
    for session in sampler.opened:
        if session.place.role == "act":
            key = session.label, session.place.group, session.place.position
            opened[key] = session.text
    env = built.domain.make_env()
    for s, stream in enumerate(dealt):
        for t, task in enumerate(stream.tasks):
            alone = prompts.act("", env.reset(task))
            own = scripted.CHAT.decode(scripted.CHAT.opening(alone))
            assert opened[heldout._LABELS["stateless"], s, t] == own
            assert (opened[heldout._LABELS["with_memory"], s, t] == own) == (t == 0)


def test_the_recorded_runs_reach_with_blanked_memory_what_they_reach_at_their_first_task():
    """There both have an empty memory: what a run gains beyond it is carried by memory."""
    recorded = results.load(ROOT / page.RESULTS)
    apart = [np.nanmean(row.of("stateless")) - row.by_position[0]
             for row in recorded.rows.values() if row.cell != WARM_START]
    # A first task has 256 plays, six times fewer than the others; its standard error is .02.
    assert np.abs(apart).max() < 0.08 and abs(np.mean(apart)) < 0.02
