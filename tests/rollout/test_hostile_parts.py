"""Whatever a part raises or returns, the rollout ends in a named status, and only a cancellation
from outside stops the program."""

import asyncio
import dataclasses
import logging
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax import domains, training_data
from rime_jax.envs.base import Outcome, Turn
from rime_jax.judge.base import Verdict
from rime_jax.judge.lexical import LexicalJudge
from rime_jax.learner import credit as credit_lib
from rime_jax.memory import CompactMemory
from rime_jax.rollout import calls, checked, loop
from rime_jax.rollout.metrics import rollout_metrics
from rime_jax.rollout.trajectory import Status
from rime_jax.sampler.base import Generation
from tests import scripted
from tests.scripted import ScriptedSampler, ScriptedSession, play, small_config, streams_of

PARSE = CompactMemory().parse_items


class Own(BaseException):
    """Not an Exception, and without a repr that works."""

    def __repr__(self):
        raise SystemExit("repr")


RAISED = [OSError("gone"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(1),
          StopAsyncIteration(), TimeoutError("its own"), asyncio.CancelledError("its own"), Own()]
raised = pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
threads = pytest.mark.parametrize("inline", [True, False], ids=["inline", "thread"])


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Failed attempts are logged as warnings; here they are meant, and read."""
    caplog.set_level(logging.WARNING)


def script(call):
    return "green large" if call.role == "write" else ("0 bank", "1 bank")[call.turn % 2]


class Environment:
    """The real one, but for the methods in `instead`."""

    def __init__(self, inline=True, **instead):
        self._real = domains.make(small_config()).make_env()
        self.inline = inline
        for method in ("reset", "step", "outcome", "close"):
            setattr(self, method, instead.get(method, getattr(self._real, method)))


def raiser(error):
    def method(*args):
        raise error

    return method


def played(inline=True, config=None, **instead):
    (rollout,), _ = play(script, config=config or small_config(rollout__retries=0),
                         make_env=lambda: Environment(inline, **instead))
    return rollout


def assert_crashed(rollout, caplog, *said):
    assert rollout.failure is Status.ENV_CRASH and rollout.tasks == []
    for words in said:
        assert words in caplog.text


# ---------------------------------------------------------------------- what is raised


@threads
@pytest.mark.parametrize("method", ["reset", "step", "outcome"])
@raised
def test_whatever_an_environment_raises_is_its_crash(error, method, inline, caplog):
    assert_crashed(played(inline, **{method: raiser(error)}), caplog, type(error).__name__)


@threads
@raised
def test_whatever_close_raises_loses_no_result(error, inline):
    rollout = played(inline, close=raiser(error))
    assert rollout.failure is None and len(rollout.tasks) == 3


@raised
def test_an_environment_that_cannot_be_made_is_tried_again(error):
    (rollout,), _ = play(script, make_env=raiser(error))
    assert rollout.failure is Status.ENV_CRASH and rollout.retried == {Status.ENV_CRASH: 2}


@pytest.mark.parametrize("made", [None, object()])
def test_what_is_no_environment_is_a_crash(made, caplog):
    (rollout,), _ = play(script, make_env=lambda: made)
    assert_crashed(rollout, caplog, "inline")


def test_without_a_thread_to_run_in_an_environment_has_crashed(monkeypatch, caplog):
    monkeypatch.setattr(threading.Thread, "start", raiser(RuntimeError("can't start new thread")))
    assert_crashed(played(inline=False), caplog, "can't start new thread")


@pytest.mark.parametrize("role", ["act", "write"])
@raised
def test_whatever_generate_raises_is_the_samplers_error(error, role):
    def failing(call):
        if call.role == role and call.sibling == 1:
            raise error
        return script(call)

    (well, lost), sampler = play(failing, siblings=2)
    assert well.failure is None
    assert lost.failure is Status.SAMPLER_ERROR and lost.retried == {Status.SAMPLER_ERROR: 2}
    assert all(s.closed for s in sampler.opened)


@pytest.mark.parametrize("method", ["open", "extend"])
@raised
def test_whatever_open_and_extend_raise_is_the_samplers_error(error, method, monkeypatch):
    owner = ScriptedSampler if method == "open" else ScriptedSession
    monkeypatch.setattr(owner, method, raiser(error))
    (rollout,), _ = play(lambda call: "0 ? green" if call.role == "act" else "")
    assert rollout.failure is Status.SAMPLER_ERROR and rollout.tasks == []


@raised
def test_a_session_that_cannot_be_closed_loses_no_result(error, monkeypatch):
    monkeypatch.setattr(ScriptedSession, "close", raiser(error))
    monkeypatch.setattr(ScriptedSampler, "open", lambda self, role, ids, seed, parent=None: (
        ScriptedSession(self, scripted.Call(role, *seed[-5:-1], 0), list(ids))))
    (rollout,), _ = play(script)
    assert rollout.failure is None and len(rollout.tasks) == 3


class Judge:
    def __init__(self, score):
        self._score = score

    async def score(self, before, after):
        return self._score()


@raised
def test_whatever_a_judge_raises_takes_only_its_score_away(error):
    assert_not_judged(Judge(raiser(error)))


@pytest.mark.parametrize("verdict", [0.5, True, (2, 2, 2, 2), "8/8", {"score": 1}, Verdict])
def test_what_is_no_verdict_is_no_score(verdict, caplog):
    assert_not_judged(Judge(lambda: verdict))
    assert f"must be of type Verdict, but is {verdict!r}" in caplog.text


def test_a_judge_that_is_not_asynchronous_is_unavailable():
    class Sync:
        def score(self, before, after):
            return Verdict((0, 0, 0, 0))

    assert_not_judged(Sync())


def assert_not_judged(judge):
    (rollout,), _ = play(script, judge=judge)
    assert rollout.failure is None and len(rollout.tasks) == 3
    for record in rollout.tasks:
        assert record.verdict is None and record.judge_status is Status.JUDGE_UNAVAILABLE


@pytest.mark.parametrize("criteria", [
    (0, 1, 2), (0, 1, 2, 3), (0, 0, 0, -1), (0, 0, 0, True), (0, 0, 0, 1.0), [0, 0, 0, 0], None,
    (0,) * 5, (np.int64(1),) * 4])
def test_a_verdict_is_four_integers_from_0_to_2(criteria):
    with pytest.raises(ValueError, match="4 integers from 0 to 2"):
        Verdict(criteria)


# ---------------------------------------------------------------------- a real cancellation


def hang(started):
    async def forever(*args, **options):
        started.set()
        await asyncio.Event().wait()

    return forever


@pytest.mark.parametrize("where", ["environment", "sampler", "judge"])
def test_a_cancellation_from_outside_stops_the_rollout(where, monkeypatch):
    """Also where the environment is closed on the way out with a cancellation of its own."""
    release, closed = threading.Event(), []

    def close():
        closed.append(where)
        raise asyncio.CancelledError("its own")

    async def cancelled():
        started = asyncio.Event()
        events = asyncio.get_running_loop()
        judge, instead = None, {}
        if where == "environment":
            def step(reply):
                events.call_soon_threadsafe(started.set)
                release.wait()

            instead = {"step": step}
        elif where == "sampler":
            monkeypatch.setattr(ScriptedSession, "generate", hang(started))
        else:
            judge = Judge(None)
            judge.score = hang(started)
        config = small_config()
        context = loop.Context(
            sampler=ScriptedSampler(script), judge=judge, chat=scripted.CHAT,
            domain=dataclasses.replace(
                domains.make(config), make_env=lambda: Environment(False, close=close, **instead)),
            options=config.rollout, judge_timeout_s=60, temperature=1.0)
        task = asyncio.create_task(loop.run_rollout(context, streams_of(config)[0], 0, 0, (1,)))
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(cancelled())
    release.set()
    assert closed


def test_a_coroutine_that_is_thrown_away_ends_silently():
    async def main():
        ended = []

        async def waiting():
            try:
                with calls.blame(Status.SAMPLER_ERROR):
                    await asyncio.Event().wait()
            except BaseException as error:
                ended.append(type(error))
                raise

        coroutine = waiting()
        task = asyncio.create_task(coroutine)
        await asyncio.sleep(0)
        coroutine.close()
        task.cancel()
        await asyncio.wait([task])
        task.exception()
        return ended

    assert asyncio.run(main()) == [GeneratorExit]


# ---------------------------------------------------------------------- what is returned


GOOD = Outcome(1.0, 0.5, True, False, "well done", {"steps": 2})
NOT_TEXTS = [None, b"bytes", 3, ["a"]]
NOT_NUMBERS = [None, "1", True, np.nan, np.inf, -np.inf, np.float32(np.inf), 10**400, 1j,
               np.ones(1)]


@threads
@pytest.mark.parametrize("value", NOT_TEXTS, ids=repr)
def test_an_observation_that_is_no_text_is_a_crash(value, inline, caplog):
    assert_crashed(played(inline, reset=lambda task: value), caplog,
                   "what reset returns must be of type str", repr(value))


@threads
@pytest.mark.parametrize(("value", "what"), [
    *((v, "what step returns must be of type Turn") for v in (None, "text", ("text", False), GOOD)),
    *((Turn(v, False), "Turn.message must be of type str") for v in NOT_TEXTS),
    *((Turn("", v), "Turn.done must be a bool") for v in (None, 0, "False")),
    *((Turn("", False, v), "Turn.format_error must be of type str") for v in (True, b"no", 1)),
], ids=repr)
def test_a_wrong_turn_is_a_crash(value, what, inline, caplog):
    assert_crashed(played(inline, step=lambda reply: value), caplog, what)


@threads
@pytest.mark.parametrize(("change", "what"), [
    *(({"reward": v}, "Outcome.reward") for v in NOT_NUMBERS),
    *(({"performance": v}, "Outcome.performance") for v in NOT_NUMBERS[1:]),
    *(({"metrics": {"n": v}}, "Outcome.metrics['n']") for v in NOT_NUMBERS),
    *(({"metrics": v}, "Outcome.metrics must be") for v in (None, [("n", 1)], 3)),
    ({"metrics": {1: 1.0}}, "a name in Outcome.metrics"),
    *(({"message": v}, "Outcome.message") for v in NOT_TEXTS),
    *(({"solved": v}, "Outcome.solved") for v in (None, 1)),
    *(({"out_of_turns": v}, "Outcome.out_of_turns") for v in (None, 1)),
], ids=repr)
def test_a_wrong_outcome_is_a_crash(change, what, inline, caplog):
    wrong = dataclasses.replace(GOOD, **change)
    assert_crashed(played(inline, outcome=lambda: wrong), caplog, what)


@pytest.mark.parametrize("value", [None, "text", {"reward": 1}])
def test_what_is_no_outcome_is_a_crash(value, caplog):
    assert_crashed(played(outcome=lambda: value), caplog, "must be of type Outcome", repr(value))


@given(st.one_of(st.integers(-9, 9), st.floats(-9, 9), st.floats(-9, 9, width=32).map(np.float32),
                 st.integers(-9, 9).map(np.int64)))
def test_numbers_of_every_kind_are_taken_as_floats(number):
    found = checked.outcome(dataclasses.replace(
        GOOD, reward=number, performance=None, solved=np.bool_(False), metrics={"n": number}))
    assert found == dataclasses.replace(
        GOOD, reward=float(number), performance=None, solved=False, metrics={"n": float(number)})
    assert type(found.reward) is float and type(found.solved) is bool


@pytest.mark.parametrize("kind", ["continue", "fresh"])
def test_text_that_cannot_be_encoded_is_made_so(kind):
    real = Environment()

    def reset(task):
        return real.reset(task) + " \udcff"

    def step(reply):
        turn = real.step(reply)
        return dataclasses.replace(turn, message=f"{turn.message}\ud800", format_error="a\udc80")

    def outcome():
        return dataclasses.replace(real.outcome(), message="\udfff", metrics={"\ud800": 1})

    config = small_config(rollout__writer_context=kind, rollout__retries=0)
    rollout = played(config=config, reset=reset, step=step, outcome=outcome)
    assert rollout.failure is None
    for record in rollout.tasks:
        assert "?" in record.transcript[0][1] and record.metrics == {"?": 1}
        assert set(record.format_errors) == {"a?"}
        "".join(text for _, text in record.transcript).encode()


@given(st.text(st.characters(exclude_categories=[])))
def test_only_what_cannot_be_encoded_is_changed(text):
    found = checked.observation(text)
    assert found == "".join("?" if "\ud800" <= c <= "\udfff" else c for c in text)


# ---------------------------------------------------------------------- what is sampled


def lied(change, session=lambda ids: None):
    """Sampler errors of a sampler whose generations and sessions are changed."""
    real = ScriptedSession.generate

    async def generate(self, *args):
        made = await real(self, *args)
        session(self.ids)
        return change(made) if callable(change) else dataclasses.replace(made, **change)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedSession, "generate", generate)
        (rollout,), _ = play(script, config=small_config(rollout__retries=0))
    return rollout


@pytest.mark.parametrize(("change", "reason"), [
    (lambda g: None, "must be of type Generation, but is None"),
    (lambda g: dataclasses.replace(g, ids=tuple(g.ids)), "Generation.ids must be of type list"),
    (lambda g: dataclasses.replace(g, ids=[float(i) for i in g.ids]), "ids must hold int"),
    (lambda g: dataclasses.replace(g, ids=list(np.array(g.ids))), "ids must hold int"),
    (lambda g: dataclasses.replace(g, ids=[i + 1 for i in g.ids]), "do not go on"),
    (lambda g: dataclasses.replace(g, ids=[-1 for _ in g.ids]), "not all token ids"),
    (lambda g: dataclasses.replace(g, logprobs=g.logprobs[1:]), "different lengths"),
    (lambda g: dataclasses.replace(g, versions=g.versions * 2), "different lengths"),
    (lambda g: dataclasses.replace(g, versions=[None] * len(g.ids)), "versions must hold int"),
    *((lambda g, v=v: dataclasses.replace(g, logprobs=[v, *g.logprobs[1:]]), "finite")
      for v in (np.nan, np.inf, -np.inf, 0.1)),
    (lambda g: dataclasses.replace(g, logprobs=[None] * len(g.ids)), "hold float or int"),
    ({"finish": "eos"}, "stop, length or context, but is 'eos'"),
    (lambda g: Generation([1] * 99, [0.0] * 99, [0] * 99, "stop"), "99 tokens where"),
])
def test_a_generation_that_is_wrong_is_refused(change, reason, caplog):
    rollout = lied(change)
    assert rollout.failure is Status.SAMPLER_ERROR and reason in caplog.text


@pytest.mark.parametrize("session", [lambda ids: ids.pop(), lambda ids: ids.append(1),
                                     lambda ids: ids.clear()], ids=["lost", "more", "emptied"])
def test_a_session_that_holds_something_else_is_refused(session, caplog):
    assert lied({}, session).failure is Status.SAMPLER_ERROR and "do not go on" in caplog.text


def test_a_session_that_forgets_the_message_is_refused(monkeypatch, caplog):
    monkeypatch.setattr(ScriptedSession, "extend", lambda self, ids: None)
    (rollout,), _ = play(lambda call: "0 ? green")
    assert rollout.failure is Status.SAMPLER_ERROR and "do not go on" in caplog.text


@pytest.mark.parametrize("opened", [lambda ids: None, lambda ids: ScriptedSession(None, None, [])])
def test_a_session_that_opens_with_something_else_is_refused(opened, monkeypatch, caplog):
    monkeypatch.setattr(ScriptedSampler, "open", lambda self, role, ids, *rest: opened(ids))
    (rollout,), _ = play(script)
    assert rollout.failure is Status.SAMPLER_ERROR and "ids" in caplog.text


def test_the_rounding_of_a_certain_token_is_let_through():
    assert lied(lambda g: dataclasses.replace(g, logprobs=[1e-7] * len(g.ids))).failure is None


# ---------------------------------------------------------------------- what the next task sees


def test_metrics_that_only_some_tasks_have_are_means_over_those():
    real, counts = Environment(), iter([{"a": 1}, {"b": 4}, {"a": 3, "c": 5}])

    def outcome():
        return dataclasses.replace(real.outcome(), metrics=next(counts))

    rollout = played(reset=real.reset, step=real.step, outcome=outcome)
    found = rollout_metrics([rollout], PARSE)
    assert [found[f"env/{name}"] for name in "abc"] == [2, 4, 5]


def kept(call):
    """One good memory, then two that are malformed and not taken over."""
    if call.role == "write":
        return ("green large", "red small pink large bank", "green large " * 11)[call.position]
    return script(call)


@pytest.mark.parametrize(("on_malformed", "items"), [("keep", [1, 1, 1]), ("replace", [1, 2, 5])])
def test_memories_are_measured_as_the_next_task_sees_them(on_malformed, items):
    config = small_config(rollout__on_malformed=on_malformed, rollout__memory_tokens=10)
    (rollout,), _ = play(kept, config=config, judge=LexicalJudge(CompactMemory()))
    seen = [len(PARSE(record.memory_after)[0]) for record in rollout.tasks]
    assert seen == items
    domain = domains.make(config)
    found = rollout_metrics([rollout], domain.memory_format.parse_items, domain.memory_truth)
    assert found["memory/items"] == pytest.approx(np.mean(items))
    truth = [domain.memory_truth(r.task, PARSE(r.memory_after)[0])["correct_facts"]
             for r in rollout.tasks]
    assert found["memory/correct_facts"] == pytest.approx(np.mean(truth))
    # Two of the tasks begin with items.
    assert found["memory/retention_exact"] == (1 if on_malformed == "keep" else 0)
    # The budget is still measured on what was sampled.
    assert found["memory/tokens"] == np.mean([r.write.mask.sum() for r in rollout.tasks])


@pytest.mark.parametrize("on_malformed", ["keep", "replace"])
def test_credit_is_compared_with_the_items_that_the_next_task_sees(on_malformed, monkeypatch):
    config = small_config(rollout__on_malformed=on_malformed, rollout__memory_tokens=10)
    rollouts, _ = play(kept, config=config, siblings=2)
    rewards = training_data.rewards_of(rollouts, 2)
    compared = []
    monkeypatch.setattr(training_data.rollout_metrics, "within_group_correlation",
                        lambda x, y: compared.append(y) or 0.0)
    training_data.credit_metrics(rollouts, rewards, credit_lib.credit(rewards, config.reward))
    expected = [[len(PARSE(r.memory_after)[0]) for r in rollout.tasks] for rollout in rollouts]
    assert any(np.array_equal(y, [expected]) for y in compared)
