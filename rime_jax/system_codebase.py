"""A checkpoint as a *system* in Continual Learning Bench's own harness.

The benchmark asks a system for commands and tells it what came of them; this one plays each
instance as the rollout loop does (ACT with the memory in its prompt, then WRITE). A file of this
kind in the benchmark's repository makes it known there:

    @register_system("rime")
    class Rime(system_codebase.MemorySystem, ContinualLearningSystem):
        parallel_safe = False  # Its devices hold one model.

        def __init__(self, run: str):
            super().__init__(system_codebase.open_run(run), Response)
"""

import asyncio
import dataclasses
import pathlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rime_jax import experiment, memory, parts, starting_point
from rime_jax.envs.codebase import interface, sandbox
from rime_jax.rollout import episode, loop
from rime_jax.rollout.trajectory import Role
from rime_jax.sampler import base as sampler_base

_SUBMIT = f"echo {interface.SENTINEL}"
# Spends the turn of a reply without a command, as in training; an empty command would be free.
_NOTHING = "true"


class Query(Protocol):
    """What the benchmark asks: its `Query`, as far as it is used here."""

    prompt: str
    response_schema: Callable[..., Any]
    instance_id: str | None


class Observation(Protocol):
    """What the benchmark tells: its `Observation`, as far as it is used here."""

    content: str
    instance_complete: bool


class MemorySystem:
    """Plays one instance after another; the memory is all that reaches the next one.

    Whatever the sampler raises goes on to the harness: a failure of this machine is no failed
    instance. Where the context is full the system hands in what there is.
    """

    def __init__(
        self, context: loop.Context, response: Callable[..., Any], *,
        statements: Mapping[str, str] | None = None, turns: int = interface.TURNS,
        seed: int | None = None,
    ):
        """Args:
          context: sampler with published parameters, chat tokens, prompts, limits.
          response: the benchmark's `Response`.
          statements: instance id → issue. One that stands in the harness's prompt is shown instead
            of it, as in training; otherwise the whole prompt is.
          turns: of an instance.
          seed: of all sampling; None: another one for each system, for the benchmark makes each run
            with the same arguments and means the runs to be independent.
        """
        self._context, self._response, self._turns = context, response, turns
        self._statements = statements or {}
        self._seed = random.SystemRandom().getrandbits(31) if seed is None else seed
        # One event loop for all calls: samplers keep tasks in it.
        self._runner = asyncio.Runner()
        self._run = -1
        self._session: sampler_base.Session | None = None
        self._error: str | None = None
        self.reset()

    @property
    def name(self) -> str:
        return "rime"

    def reset(self) -> None:
        """Forgets everything."""
        self._leave()
        self._run += 1
        self._instance = 0
        self._memory = ""
        self._memories: list[str] = []

    def close(self) -> None:
        """Frees what it holds, its context's sampler included; it answers no more."""
        self._leave()
        with self._runner as runner:
            runner.run(self._context.sampler.close())

    def respond(self, query: Query) -> Any:
        """The next command, in the benchmark's own types."""
        reply = self._reply(query)
        self._spent += 1
        if reply is None:
            self._command, self._error, reply = _SUBMIT, None, "The context is full."
        else:
            parsed = interface.parse(reply)
            self._command, self._error = parsed.command or _NOTHING, parsed.error
        action = query.response_schema(thought=reply, command=self._command)
        return self._response(action=action, metadata={
            "format_error": self._error, "turn": self._spent})

    def observe(self, observation: Observation, next_query: Query | None = None) -> None:
        """Takes what the last command printed, or the verdict, after which the memory is written.

        The last memory of a run has no reader and is not written.
        """
        if observation.instance_complete:
            if next_query is not None and self._session is not None:
                self._write(observation.content)
            self._leave()
            self._instance += 1
            return
        left = max(self._turns - self._spent, 0)
        if self._error is not None:
            self._message = interface.format_message(self._error, left)
        else:
            result = _result(observation.content)
            # The harness would have ended the instance if the command had submitted.
            _, hint = interface.submitted(self._command, dataclasses.replace(result, output=""))
            self._message = interface.observation(result, left, hint)
        self._transcript.append(("environment", self._message))

    def get_run_artifacts(self) -> dict[str, Any]:
        """The memories of the run, in order, for the benchmark's records."""
        return {"memories": list(self._memories)}

    def _reply(self, query: Query) -> str | None:
        """The actor's next reply without its thinking; None where the context is full."""
        context = self._context
        if self._session is None:
            observation = self._opening(query)
            prompt = context.chat.opening(context.domain.prompts.act(self._memory, observation))
            if len(prompt) >= context.sampler.context_tokens:
                return None
            self._transcript.append(("environment", observation))
            self._session = self._open("act", prompt)
        else:
            ids = context.chat.turn(self._message, self._session.ids[-1])
            if len(self._session.ids) + len(ids) >= context.sampler.context_tokens:
                return None
            self._session.extend(ids)
        generation = self._generate(context.options.act_tokens)
        if generation.finish == "context":
            return None
        raw = context.chat.decode(generation.ids)
        self._transcript.append(("actor", raw))
        return memory.strip_thinking(raw, context.chat.think_opened)[0]

    def _opening(self, query: Query) -> str:
        statement = self._statements.get(query.instance_id, "").strip()
        if not statement or statement not in query.prompt:
            statement = query.prompt
        return interface.opening(statement, self._turns)

    def _write(self, outcome: str) -> None:
        context, wording = self._context, self._context.domain.prompts
        if context.options.writer_context == "fresh":
            parent = None
            prompt = context.chat.opening(
                wording.write_afresh(self._memory, self._transcript, outcome))
        else:
            parent, ids = self._session, self._session.ids
            prompt = ids + context.chat.turn(wording.write_on("", outcome), ids[-1])
        if len(prompt) < context.sampler.context_tokens:
            act_session = self._session
            self._session = self._open("write", prompt, parent)
            act_session.close()
            _, written = episode.read_memory(context, self._generate(context.options.write_tokens))
            if written.malformed is None or context.options.on_malformed != "keep":
                self._memory = written.text
        self._memories.append(self._memory)

    def _open(
        self, role: Role, prompt: list[int], parent: sampler_base.Session | None = None
    ) -> sampler_base.Session:
        place = loop.Place((self._seed,), self._run, 0, self._instance, 0)
        return self._context.sampler.open(role, prompt, place.seed_of(role), parent)

    def _generate(self, tokens: int) -> sampler_base.Generation:
        return self._runner.run(self._session.generate(tokens, self._context.temperature))

    def _leave(self) -> None:
        """Ends the instance: the dialogue is no channel."""
        if self._session is not None:
            self._session.close()
        self._session = None
        self._spent = 0
        self._transcript: list[tuple[str, str]] = []
        self._message, self._command = "", ""
        self._error = None


def open_run(run: str, overrides: Sequence[str] = ()) -> loop.Context:
    """The newest checkpoint of a run directory, ready to play at `eval.temperature`.

    Args:
      overrides: options as on the command line, such as `sampler.slots=1`.

    Raises:
      ConfigError, ModelError, CheckpointError: the run cannot be used, and the remedy.
    """
    directory = pathlib.Path(run)
    config = experiment.read(str(directory / "config.json"), overrides)
    built = parts.build(config)
    step, params = starting_point.newest(built, directory)
    asyncio.run(built.sampler.publish(params, step))
    return built.context(config.eval.temperature)


_RETURN_CODE = re.compile(r"\s*(?:<exception>.*?</exception>\s*)?<returncode>(-?\d+)</returncode>",
                          re.DOTALL)


def _result(content: str) -> sandbox.Result:
    """The harness's observation, to be shown as the policy knows it from training."""
    match = _RETURN_CODE.match(content)
    exit_code = int(match[1]) if match else 0
    output = content[match.end():].strip() if match else content
    if output.startswith("<output>") and output.endswith("</output>"):
        output = output.removeprefix("<output>").removesuffix("</output>").strip("\n")
    return sandbox.Result(output, exit_code, "done", 0, 0.0)
