"""A checkpoint inside the benchmark's harness, of which this file has a stand-in."""

import abc
import dataclasses
import re
from typing import Any

import pytest

from rime_jax import prompts_codebase, system_codebase
from rime_jax.envs import base as env_base
from rime_jax.envs.codebase import interface, sandbox
from tests import scripted
from tests.envs.codebase.test_domain import byte_chat

SUBMIT = f"```bash\necho {interface.SENTINEL}\n```"
ISSUES = ("Zipping stops too early.", "Flattening loses strings.", "Walking visits twice.")
TURNS = 6


def memory_text(position):
    return ("## Repository knowledge\n- tests are in tests/\n"
            f"- {position + 1} issues were met\n"
            "## Lessons and pitfalls\n- run pytest first\n- Check the signs")


def run(command):
    return f"I try it.\n```bash\n{command}\n```"


@dataclasses.dataclass
class Command:
    """The benchmark's structured answer for this task."""

    thought: str
    command: str


@dataclasses.dataclass
class Observation:
    content: str
    instance_complete: bool = True
    metadata: Any = None


@dataclasses.dataclass
class Query:
    prompt: str
    response_schema: Any
    instance_id: str | None = None
    metadata: Any = None


@dataclasses.dataclass
class Response:
    action: Any
    metadata: Any = None


class System(abc.ABC):
    """The benchmark's base class of systems."""

    @abc.abstractmethod
    def respond(self, query): ...

    @abc.abstractmethod
    def reset(self): ...

    @property
    @abc.abstractmethod
    def name(self): ...

    def observe(self, observation, next_query=None):
        raise AssertionError("the system does not look at what comes of its commands")

    def consume_usage_events(self):
        return []


class RimeSystem(system_codebase.MemorySystem, System):
    """As a file in the benchmark's repository would define it."""


def answer(command):
    """What a made-up shell prints."""
    return 1 if "fail" in command else 0, f"ran {command}"


class Harness:
    """Asks, runs, tells; turns, grades and texts as in the benchmark."""

    def __init__(self, system, issues=ISSUES):
        self.system, self.issues = system, issues
        self.commands = [[] for _ in issues]

    def query(self, i, first):
        prompt = (f"=== Brief ===\nRepair it.\n\n{self.issues[i]}\n" if first
                  else "Repository: a/b\nWhat's your next command?")
        return Query(prompt, Command, f"issue-{i}")

    def play(self, reset_between=False):
        self.system.reset()
        query, i = self.query(0, True), 0
        while query is not None:
            response = self.system.respond(query)
            self.system.consume_usage_events()
            command = response.action.command
            assert isinstance(response, Response) and command.strip()
            self.commands[i].append(command)
            if command == f"echo {interface.SENTINEL}":
                text = "Submission PASSED (eval status: ok)."
            elif len(self.commands[i]) == TURNS:
                text = "Max steps reached."
            else:
                code, output = answer(command)
                shown = f"<returncode>{code}</returncode>\n<output>\n{output}\n</output>"
                query = self.query(i, False)
                self.system.observe(Observation(shown, False), query)
                continue
            i += 1
            query = self.query(i, True) if i < len(self.issues) else None
            self.system.observe(Observation(text), query)
            if reset_between:
                self.system.reset()
        return self.commands


def context(script, context_tokens=20_000, **options):
    config = scripted.small_config()
    for name, value in dict(memory_tokens=1000, write_tokens=1200, act_tokens=2000,
                            context_tokens=context_tokens, **options).items():
        config.rollout[name] = value
    domain = dataclasses.replace(
        scripted.domains.make(scripted.small_config()),
        prompts=prompts_codebase.CodebasePrompts(1000, TURNS),
        memory_format=prompts_codebase.CodebaseMemory(), words="", memory_truth=None)
    chat = byte_chat()
    return scripted.loop.Context(
        sampler=scripted.ScriptedSampler(script, context_tokens, chat), judge=None, domain=domain,
        chat=chat, options=config.rollout, judge_timeout_s=None, temperature=1.0)


def good(call):
    if call.role == "write":
        return memory_text(call.position)
    return [run("ls"), run("fail it"), SUBMIT][call.turn]


def harness(script=good, issues=ISSUES, context_tokens=20_000, statements=None, **options):
    made = context(script, context_tokens, **options)
    system = RimeSystem(made, Response, statements=statements, turns=TURNS, seed=3)
    return Harness(system, issues), made.sampler


def text_of(session):
    return byte_chat().decode(session.ids)


STATEMENTS = {f"issue-{i}": issue for i, issue in enumerate(ISSUES)}


class ReplayedEnvironment:
    """The made-up shell as an environment of the rollout loop."""

    inline = True

    def reset(self, task):
        self._left = TURNS
        return (f"{ISSUES[task.payload]}\n\nThe repository is in {sandbox.WORKDIR}. "
                f"You have {TURNS} turns.")

    def step(self, reply):
        self._left -= 1
        parsed = interface.parse(reply)
        if parsed.error:
            return env_base.Turn(interface.format_message(parsed.error, self._left), False,
                                 parsed.error)
        if interface.SENTINEL in parsed.command:
            return env_base.Turn("", True)
        code, output = answer(parsed.command)
        result = sandbox.Result(output, code, "done", 0, 0.0)
        return env_base.Turn(interface.observation(result, self._left), False)

    def outcome(self):
        return env_base.Outcome(1.0, 1.0, True, False, "Submission PASSED (eval status: ok).", {})

    def close(self):
        pass


@pytest.mark.parametrize("writer_context", ["continue", "fresh"])
def test_it_plays_token_by_token_what_the_rollout_loop_plays(writer_context):
    def script(call):
        if call.role == "act" and call.position == 1 and call.turn == 0:
            return "No command."
        return good(call)

    system, sampler = harness(script, statements=STATEMENTS, writer_context=writer_context)
    system.play()
    looped = context(script, writer_context=writer_context)
    looped = dataclasses.replace(
        looped, domain=dataclasses.replace(looped.domain, make_env=ReplayedEnvironment))
    tasks = tuple(scripted.loop.streams.Task(str(i), i) for i in range(3))
    scripted.asyncio.run(scripted.loop.run_rollout(
        looped, scripted.loop.streams.Stream("s", tasks), 0, 0, (3,)))
    # The loop also writes the last memory, which has no reader.
    assert [s.ids for s in sampler.opened] == [s.ids for s in looped.sampler.opened[:-1]]


def test_the_memory_is_all_that_reaches_the_next_instance():
    player, sampler = harness()
    commands = player.play()
    assert commands == [["ls", "fail it", f"echo {interface.SENTINEL}"]] * 3
    second = text_of(sampler.sessions("act", 1)[0])
    assert "| - 1 issues were met" in second
    assert ISSUES[1] in second and ISSUES[0] not in second
    written = text_of(sampler.sessions("write", 0)[0])
    assert ISSUES[0] in written and "PASSED" in written
    assert "PASSED" not in "".join(text_of(sampler.sessions("act", i)[0]) for i in range(3))
    assert player.system.get_run_artifacts() == {"memories": [memory_text(0), memory_text(1)]}
    assert all(session.closed for session in sampler.opened)


def test_a_reset_forgets_everything():
    player, sampler = harness()
    player.play(reset_between=True)
    for session in (s for s in sampler.opened if s.place.role == "act"):
        assert "(empty)" in text_of(session)
    assert player.system.get_run_artifacts() == {"memories": []}
    player.system.reset()
    player.system.respond(player.query(0, True))
    player.system.close()
    assert sampler.closed and all(session.closed for session in sampler.opened)


def test_two_systems_of_one_configuration_sample_differently():
    seeds = {RimeSystem(context(good), Response)._seed for _ in range(8)}
    assert len(seeds) > 1


@pytest.mark.parametrize(("reply", "error"), [
    ("I think.", "no_action"), (f"{run('ls')}\n{run('ls')}", "several_actions"),
    ("```bash\nls", "unclosed_action"), ("```bash\n\n```", "empty_action"),
    (f"<think>{run('ls')}", "no_action")])
def test_a_reply_without_one_command_runs_nothing_and_spends_the_turn(reply, error):
    def script(call):
        return reply if call.role == "act" and call.turn == 0 else good(
            dataclasses.replace(call, turn=2))

    player, sampler = harness(script, issues=ISSUES[:1])
    assert player.play() == [["true", f"echo {interface.SENTINEL}"]]
    assert interface.format_message(error, TURNS - 1) in text_of(sampler.opened[0])


def test_a_model_that_never_acts_ends_by_its_turns():
    player, sampler = harness(lambda call: memory_text(0) if call.role == "write" else "Hm.",
                              issues=ISSUES[:2])
    assert player.play() == [["true"] * TURNS] * 2
    assert "Max steps" in text_of(sampler.sessions("write", 0)[0])


def test_a_submission_that_the_harness_does_not_take_is_answered_with_what_to_do():
    def script(call):
        if call.role == "act" and call.turn == 0:
            return run(f"pytest -q && echo {interface.SENTINEL}")
        return good(dataclasses.replace(call, turn=2))

    player, sampler = harness(script, issues=ISSUES[:1])
    player.play()
    text = text_of(sampler.opened[0])
    assert "Nothing was submitted" in text and f"run exactly: echo {interface.SENTINEL}" in text


def test_a_full_context_hands_in_what_there_is_and_keeps_the_memory():
    def script(call):
        if call.role == "write":
            return memory_text(call.position)
        return run("x" * 600) if call.position == 1 else SUBMIT

    player, sampler = harness(script, context_tokens=6_000)
    commands = player.play()
    assert commands[1][-1] == f"echo {interface.SENTINEL}" and len(commands[1]) < TURNS
    assert len(sampler.sessions("act", 1)[0].ids) <= 6_000
    assert "| - 1 issues were met" in text_of(sampler.sessions("act", 2)[0])


def test_an_issue_that_does_not_fit_is_handed_in_and_the_next_one_played():
    player, sampler = harness(context_tokens=6_000, issues=("x" * 9_000, ISSUES[1]))
    commands = player.play()
    assert commands[0] == [f"echo {interface.SENTINEL}"] and len(commands[1]) == 3
    assert "(empty)" in text_of(sampler.opened[0])


@pytest.mark.parametrize(("on_malformed", "kept"), [("keep", True), ("replace", False)])
def test_a_malformed_memory_is_treated_as_in_training(on_malformed, kept):
    def script(call):
        return "nothing" if call.role == "write" and call.position == 1 else good(call)

    player, _ = harness(script, on_malformed=on_malformed)
    player.play()
    last = player.system.get_run_artifacts()["memories"][-1]
    assert last == (memory_text(0) if kept else "nothing")


def test_the_issue_is_shown_alone_only_if_it_stands_in_the_prompt():
    for statements, brief in ((None, True), (STATEMENTS, False),
                              ({"issue-0": "Something else."}, True)):
        player, sampler = harness(statements=statements, issues=ISSUES[:1])
        player.play()
        text = text_of(sampler.opened[0])
        assert ISSUES[0] in text and ("=== Brief ===" in text) == brief
        assert "Something else." not in text


@pytest.mark.parametrize("content", [
    "<returncode>2</returncode>\n<output>\nno\n</output>",
    "<exception>timed out</exception>\n<returncode>2</returncode>\n<output>\nno\n</output>",
    "<returncode>2</returncode><output>no</output>"])
def test_observations_look_as_in_training(content):
    player, sampler = harness()
    player.system.respond(player.query(0, True))
    player.system.observe(Observation(content, False), player.query(0, False))
    player.system.respond(player.query(0, False))
    expected = interface.observation(sandbox.Result("no", 2, "done", 0, 0.0), TURNS - 1)
    assert expected in text_of(sampler.opened[0])


@pytest.mark.parametrize("content", ["", "any text", "<returncode>x</returncode>",
                                     "<warning>long</warning>" + "y" * 20_000])
def test_observations_of_another_form_are_shown_too_and_capped(content):
    player, sampler = harness()
    player.system.respond(player.query(0, True))
    before = len(sampler.opened[0].ids)
    player.system.observe(Observation(content, False), player.query(0, False))
    player.system.respond(player.query(0, False))
    text = byte_chat().decode(sampler.opened[0].ids[before:])
    assert content[:100] in text
    assert len(text) < interface.OBSERVATION_CHARACTERS + 200


def test_a_failure_of_the_sampler_is_no_failed_instance():
    player, _ = harness(lambda call: RuntimeError("the server is gone"))
    with pytest.raises(RuntimeError, match="server is gone"):
        player.play()


def test_the_turns_that_are_told_are_those_that_the_harness_has():
    player, sampler = harness(lambda call: memory_text(0) if call.role == "write" else run("ls"))
    player.play()
    text = text_of(sampler.opened[0])
    assert re.findall(r"Turns left: (\d)", text) == ["5", "4", "3", "2", "1"]
    assert f"You have {TURNS} turns" in text
