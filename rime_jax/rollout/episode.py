"""One task of a rollout: ACT, then WRITE."""

import collections
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from rime_jax import memory, streams
from rime_jax.envs import base as env_base
from rime_jax.rollout import checked
from rime_jax.rollout.calls import InfrastructureFailure, blame, call_environment
from rime_jax.rollout.context import Carried, Context, Place
from rime_jax.rollout.history import Past, conversation
from rime_jax.rollout.trajectory import Role, Sample, Status, TaskRecord
from rime_jax.sampler import base as sampler_base

_log = logging.getLogger(__name__)

# Calls a function into the episode's environment; see `call_environment`.
_Call = Callable[[Callable[[], Any]], Awaitable[Any]]


class Episode:
    """Plays one task; holds what the steps pass on to each other."""

    def __init__(self, context: Context, task: streams.Task, place: Place, carried: Carried):
        self._context = context
        self._options = context.options
        self._task = task
        self._place = place
        self._carried = carried
        self._document = carried.memory
        if context.given_memory is not None:
            self._document = context.given_memory(task, place)
        self._transcript: list[tuple[str, str]] = []
        self._errors: collections.Counter[str] = collections.Counter()
        self._turns = 0
        self._session: sampler_base.Session | None = None
        # Of the actor's conversation: the earlier tasks in it, and where the first reply begins.
        self._past = carried.past
        self._begin = 0
        self._reopened = 0

    async def run(self) -> tuple[TaskRecord, Carried]:
        """The task, and what reaches the next one.

        Raises:
          InfrastructureFailure: something around the policy broke.
        """
        with blame(Status.ENV_CRASH):
            env = self._context.domain.make_env()
            inline = env.inline
        call = functools.partial(
            call_environment, inline=inline, timeout_s=self._options.env_timeout_s
        )
        try:
            status, message, outcome, act = await self._act(env, call)
        finally:
            await self._close_environment(env, call)
        carried = self._carried
        try:
            if self._context.given_memory is not None:
                written, after, write = memory.Written("", (), None), self._document, None
            elif self._context.scaffold == "in_context":
                written, after, write = memory.Written("", (), None), "", None
                past = Past(self._observation, tuple(self._session.ids[self._begin:]), message,
                            outcome.message)
                carried = Carried("", (*carried.past, past))
            else:
                written, after, write = await self._write(message, outcome)
                carried = Carried(after)
            write = write or self._sample("write", [], [])
        finally:
            self._close_session(self._session)
        return TaskRecord(
            task=self._task, status=status, judge_status=None, reward=outcome.reward,
            performance=outcome.performance, verdict=None, memory_before=self._document,
            memory_after=after, written=written, act=act, write=write, turns=self._turns,
            transcript=self._transcript, format_errors=dict(self._errors),
            metrics=dict(outcome.metrics),
        ), carried

    async def _act(
        self, env: env_base.Environment, call: _Call
    ) -> tuple[Status, str, env_base.Outcome, Sample]:
        """Plays the task; also returns the environment's last message."""
        self._observation = await call(lambda: checked.observation(env.reset(self._task)))
        self._say("environment", self._observation)
        prompt = self._actor_prompt()
        self._begin = len(prompt)
        self._session = self._open("act", prompt)
        generations: list[sampler_base.Generation] = []
        # Where each reply begins, behind the opening.
        starts: list[int] = []
        in_a_row = 0
        message, ended = "", None
        try:
            while ended is None:
                starts.append(len(self._session.ids) - self._begin)
                generations.append(await self._generate(self._options.act_tokens))
                if generations[-1].finish == "context":
                    ended = Status.CONTEXT_LIMIT
                    break
                turn = await self._take_turn(env, call, generations[-1])
                message = turn.message
                in_a_row = in_a_row + 1 if turn.format_error else 0
                if turn.done:
                    ended = Status.FAILED  # refined by the outcome below
                elif in_a_row >= self._options.max_format_errors:
                    ended = Status.FORMAT_ERRORS
                elif not self._say_to_actor(message):
                    ended = Status.CONTEXT_LIMIT
            outcome = await call(lambda: checked.outcome(env.outcome()))
        except BaseException:
            self._close_session(self._session)
            raise
        sample = self._sample("act", generations, [self._begin + start for start in starts])
        return _refine(ended, outcome), message, outcome, sample

    def _actor_prompt(self) -> list[int]:
        context = self._context
        if context.scaffold == "in_context":
            room = context.sampler.context_tokens - self._options.act_tokens
            ids, self._past = conversation(
                context.chat, context.domain.prompts, self._past, self._observation, room)
            return ids
        return context.chat.opening(
            context.domain.prompts.act(self._document, self._observation))

    async def _take_turn(
        self, env: env_base.Environment, call: _Call, generation: sampler_base.Generation
    ) -> env_base.Turn:
        """Hands a reply to the environment; one that never left its thinking counts as empty."""
        self._turns += 1
        raw = self._context.chat.decode(generation.ids)
        self._say("actor", raw)
        reply, unclosed = memory.strip_thinking(raw, self._context.chat.think_opened)
        turn = await call(lambda: checked.turn(env.step(reply)))
        if unclosed:
            turn = dataclasses.replace(turn, format_error=unclosed)
        if turn.format_error:
            self._errors[turn.format_error] += 1
        if turn.message:
            self._say("environment", turn.message)
        return turn

    def _say_to_actor(self, message: str) -> bool:
        """Appends the environment's message; False when a reply would not fit behind it."""
        ids = self._context.chat.turn(message, self._session.ids[-1])
        limit = self._context.sampler.context_tokens
        if self._past and len(self._session.ids) + len(ids) + self._options.act_tokens > limit:
            self._drop_oldest(limit - len(ids) - self._options.act_tokens)
        session = self._session
        start = len(session.ids)
        if start + len(ids) >= limit:
            return False
        with blame(Status.SAMPLER_ERROR):
            session.extend(ids)
            checked.appended(session.ids[start:], ids)
        return True

    def _drop_oldest(self, room: int) -> None:
        """Goes on in a conversation with fewer earlier tasks, that takes `room` tokens if it can;
        what was said in this task stays."""
        said = self._session.ids[self._begin:]
        prompt, self._past = conversation(
            self._context.chat, self._context.domain.prompts, self._past, self._observation,
            room - len(said))
        self._close_session(self._session)
        # Tokens stand at places that had others before, and must not have their randomness.
        self._reopened += 1
        self._begin = len(prompt)
        self._session = self._open("act", prompt + said)

    async def _write(
        self, message: str, outcome: env_base.Outcome
    ) -> tuple[memory.Written, str, Sample]:
        """The new memory: as it was written, and as the next task sees it."""
        context = self._context
        prompt, parent = self._writer_prompt(message, outcome)
        if len(prompt) >= context.speaker("write").sampler.context_tokens:
            written = memory.Written("", (), "context_limit")
            return written, self._document, self._sample("write", [], [])
        act_session = self._session
        self._session = self._open("write", prompt, parent)
        self._close_session(act_session)
        start = len(self._session.ids)
        generation = await self._generate(self._options.write_tokens)
        reply, written = read_memory(context, generation)
        self._say("writer", reply)
        keep = written.malformed is not None and self._options.on_malformed == "keep"
        sample = self._sample("write", [generation], [start])
        return written, self._document if keep else written.text, sample

    def _writer_prompt(
        self, message: str, outcome: env_base.Outcome
    ) -> tuple[list[int], sampler_base.Session | None]:
        """The writer's prompt, and the session whose cache it can take over."""
        context, wording = self._context, self._context.domain.prompts
        if self._options.writer_context == "fresh" or context.writer is not None:
            opening = wording.write_afresh(self._document, self._transcript, outcome.message)
            return context.speaker("write").chat.opening(opening), None
        ids = self._session.ids
        turn = context.chat.turn(wording.write_on(message, outcome.message), ids[-1])
        return ids + turn, self._session

    def _open(
        self, role: Role, prompt: list[int], parent: sampler_base.Session | None = None
    ) -> sampler_base.Session:
        seed = self._place.seed_of(role)
        if self._reopened:
            seed = (self._reopened, *seed)
        with blame(Status.SAMPLER_ERROR):
            sampler = self._context.speaker(role).sampler
            return checked.session(sampler.open(role, prompt, seed, parent), prompt)

    async def _generate(self, max_new_tokens: int) -> sampler_base.Generation:
        session = self._session
        with blame(Status.SAMPLER_ERROR):
            start = len(session.ids)
            generation = await session.generate(max_new_tokens, self._context.temperature)
            return checked.generation(generation, session.ids[start:], max_new_tokens)

    async def _close_environment(self, env: env_base.Environment, call: _Call) -> None:
        try:
            await call(lambda: env.close())
        except InfrastructureFailure as failure:
            _log.warning("%s: closing the environment failed: %s", self._task.id, failure)

    def _close_session(self, session: sampler_base.Session) -> None:
        try:
            with blame(Status.SAMPLER_ERROR):
                session.close()
        except InfrastructureFailure as failure:
            _log.warning("%s: closing a session failed: %s", self._task.id, failure)

    def _say(self, speaker: str, text: str) -> None:
        self._transcript.append((speaker, text))

    def _sample(
        self, role: Role, generations: list[sampler_base.Generation], starts: list[int]
    ) -> Sample:
        """The session's conversation with the provenance of each token."""
        ids = np.array(self._session.ids, np.int32)
        mask = np.zeros(len(ids), bool)
        logprobs = np.zeros(len(ids), np.float32)
        for start, generation in zip(starts, generations, strict=True):
            end = start + len(generation.ids)
            mask[start:end] = True
            logprobs[start:end] = generation.logprobs
        versions = [v for g in generations for v in g.versions]
        return Sample(
            role=role, group=self._place.group, sibling=self._place.sibling,
            position=self._place.position, ids=ids, mask=mask, logprobs=logprobs,
            version=min(versions, default=-1),
        )


def read_memory(
    context: Context, generation: sampler_base.Generation
) -> tuple[str, memory.Written]:
    """A sampled WRITE turn as text, and the memory that it is; one that is too long is cut."""
    chat, budget = context.speaker("write").chat, context.options.memory_tokens
    body = generation.ids
    if body and body[-1] in chat.stop_ids:
        body = body[:-1]
    reply = chat.decode(body)
    answer, _ = memory.strip_thinking(reply, chat.think_opened)
    # Thinking is not part of the memory. An answer without any counts as it was sampled.
    n_tokens = len(body) if answer == reply.strip() else len(chat.text(answer))
    written = memory.read_reply(
        reply, n_tokens, budget, generation.finish == "stop", context.domain.memory_format,
        chat.think_opened)
    if written.malformed == "over_budget" or written.malformed == "truncated":
        text = chat.decode(chat.text(written.text)[:budget])
        items, _ = context.domain.memory_format.parse_items(text)
        written = dataclasses.replace(written, text=text, items=tuple(items))
    return reply, written


def _refine(ended: Status, outcome: env_base.Outcome) -> Status:
    """A task that the environment ended is solved, out of turns, or failed."""
    if ended is not Status.FAILED:
        return ended
    if outcome.solved:
        return Status.SOLVED
    return Status.OUT_OF_TURNS if outcome.out_of_turns else Status.FAILED
