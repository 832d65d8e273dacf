"""The ACT–WRITE loop of one rollout, as one coroutine (method section 1).

For each task of the stream: the actor plays it in a conversation that opens with the memory; the
writer then emits the new memory, which replaces the old one; the judge compares the two. The
memory is all that reaches the next task.
"""

import asyncio
import collections
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import ml_collections
import numpy as np

from rime_jax import memory, streams
from rime_jax.envs import base as env_base
from rime_jax.judge import base as judge_base
from rime_jax.policy import chat as chat_lib
from rime_jax.rollout import checked
from rime_jax.rollout.calls import InfrastructureFailure, blame, call_environment
from rime_jax.rollout.domain import Domain
from rime_jax.rollout.trajectory import Role, Rollout, Sample, Status, TaskRecord
from rime_jax.sampler import base as sampler_base

_log = logging.getLogger(__name__)

# Calls a function into the episode's environment; see `call_environment`.
_Call = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclasses.dataclass(frozen=True)
class Context:
    """What all rollouts share.

    Attributes:
      options: `config.rollout`.
      judge: None: no exploration scores at all (not a failure).
      judge_timeout_s: seconds for one verdict; None: the judge sees to it.
      temperature: of sampling.
      given_memory: task → the memory that it starts from, instead of the one written before;
        nothing is written or judged then. A constant '' makes the stateless counterpart of a
        checkpoint.
    """

    sampler: sampler_base.Sampler
    judge: judge_base.Judge | None
    domain: Domain
    chat: chat_lib.ChatTokens
    options: ml_collections.ConfigDict
    judge_timeout_s: float | None
    temperature: float
    given_memory: Callable[[streams.Task], str] | None = None


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a task stands: the source of its randomness and the labels of its samples."""

    seed: tuple[int, ...]
    group: int
    sibling: int
    position: int
    attempt: int

    def seed_of(self, role: Role) -> tuple[int, ...]:
        return (*self.seed, self.group, self.sibling, self.position, self.attempt,
                ("act", "write").index(role))


async def run_rollout(
    context: Context, stream: streams.Stream, group: int, sibling: int, seed: tuple[int, ...]
) -> Rollout:
    """Plays a stream from the empty memory. Never raises for what an environment, the sampler or
    the judge does: the task is tried again, then the rollout ends with its `failure`.

    Args:
      seed: with the place in the batch and stream it decides all randomness of the rollout.
    """
    document = ""
    records: list[TaskRecord] = []
    # The judge works while the next task is played.
    verdicts: list[asyncio.Task] = []
    retried: collections.Counter[Status] = collections.Counter()
    failure_status = None
    for position, task in enumerate(stream.tasks):
        if context.given_memory is not None:
            document = context.given_memory(task)
        for attempt in range(context.options.retries + 1):
            place = Place(seed, group, sibling, position, attempt)
            try:
                record = await _Episode(context, task, place, document).run()
                break
            except InfrastructureFailure as failure:
                _log.warning("%s, sibling %d, attempt %d: %s", task.id, sibling, attempt, failure)
                last = failure.status
                retried[last] += 1
        else:
            # The last attempt's failure is the rollout's, and was not mended by a new start.
            retried[last] -= 1
            failure_status = last
            break
        records.append(record)
        if context.given_memory is None:
            document = record.memory_after
            verdicts.append(asyncio.create_task(
                _judge(context, record.memory_before, record.memory_after, task.id)
            ))
    judged = await asyncio.gather(*verdicts)
    if verdicts:
        records = [
            dataclasses.replace(record, verdict=verdict, judge_status=judge_status)
            for record, (verdict, judge_status) in zip(records, judged, strict=True)
        ]
    return Rollout(stream, group, sibling, records, failure_status, dict(+retried))


async def _judge(
    context: Context, before: str, after: str, name: str
) -> tuple[judge_base.Verdict | None, Status | None]:
    """The verdict on two memories; a failure is None and says so (never a zero)."""
    if context.judge is None:
        return None, None
    try:
        with blame(Status.JUDGE_UNAVAILABLE):
            async with asyncio.timeout(context.judge_timeout_s):
                verdict = checked.verdict(await context.judge.score(before, after))
    except InfrastructureFailure as failure:
        _log.warning("%s: %s", name, failure)
        verdict = None
    return verdict, Status.JUDGE_UNAVAILABLE if verdict is None else None


def read_memory(
    context: Context, generation: sampler_base.Generation
) -> tuple[str, memory.Written]:
    """A sampled WRITE turn as text, and the memory that it is; one that is too long is cut."""
    chat, budget = context.chat, context.options.memory_tokens
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


class _Episode:
    """One task: ACT, then WRITE. Holds what the steps pass on to each other."""

    def __init__(self, context: Context, task: streams.Task, place: Place, document: str):
        self._context = context
        self._options = context.options
        self._task = task
        self._place = place
        self._document = document
        self._transcript: list[tuple[str, str]] = []
        self._errors: collections.Counter[str] = collections.Counter()
        self._turns = 0
        self._session: sampler_base.Session | None = None

    async def run(self) -> TaskRecord:
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
        try:
            if self._context.given_memory is not None:
                written, after = memory.Written("", (), None), self._document
                write = self._sample("write", [], [])
            else:
                written, after, write = await self._write(message, outcome)
        finally:
            self._close_session(self._session)
        return TaskRecord(
            task=self._task, status=status, judge_status=None, reward=outcome.reward,
            performance=outcome.performance, verdict=None, memory_before=self._document,
            memory_after=after, written=written, act=act, write=write, turns=self._turns,
            transcript=self._transcript, format_errors=dict(self._errors),
            metrics=dict(outcome.metrics),
        )

    async def _act(
        self, env: env_base.Environment, call: _Call
    ) -> tuple[Status, str, env_base.Outcome, Sample]:
        """Plays the task; also returns the environment's last message."""
        observation = await call(lambda: checked.observation(env.reset(self._task)))
        self._say("environment", observation)
        prompt = self._context.chat.opening(
            self._context.domain.prompts.act(self._document, observation)
        )
        self._session = self._open("act", prompt)
        generations: list[sampler_base.Generation] = []
        starts: list[int] = []
        in_a_row = 0
        message, ended = "", None
        try:
            while ended is None:
                starts.append(len(self._session.ids))
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
        return (
            _refine(ended, outcome), message, outcome, self._sample("act", generations, starts)
        )

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
        session = self._session
        ids = self._context.chat.turn(message, session.ids[-1])
        start = len(session.ids)
        if start + len(ids) >= self._context.sampler.context_tokens:
            return False
        with blame(Status.SAMPLER_ERROR):
            session.extend(ids)
            checked.appended(session.ids[start:], ids)
        return True

    async def _write(
        self, message: str, outcome: env_base.Outcome
    ) -> tuple[memory.Written, str, Sample]:
        """The new memory: as it was written, and as the next task sees it."""
        context = self._context
        prompt, parent = self._writer_prompt(message, outcome)
        if len(prompt) >= context.sampler.context_tokens:
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
        chat, wording = self._context.chat, self._context.domain.prompts
        if self._options.writer_context == "fresh":
            opening = wording.write_afresh(self._document, self._transcript, outcome.message)
            return chat.opening(opening), None
        ids = self._session.ids
        return ids + chat.turn(wording.write_on(message, outcome.message), ids[-1]), self._session

    def _open(
        self, role: Role, prompt: list[int], parent: sampler_base.Session | None = None
    ) -> sampler_base.Session:
        with blame(Status.SAMPLER_ERROR):
            return checked.session(
                self._context.sampler.open(role, prompt, self._place.seed_of(role), parent), prompt
            )

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


def _refine(ended: Status, outcome: env_base.Outcome) -> Status:
    """A task that the environment ended is solved, out of turns, or failed."""
    if ended is not Status.FAILED:
        return ended
    if outcome.solved:
        return Status.SOLVED
    return Status.OUT_OF_TURNS if outcome.out_of_turns else Status.FAILED
