"""The ACT–WRITE loop of one rollout, as one coroutine (method section 1).

For each task of the stream: the actor plays it in a conversation that opens with the memory; the
writer then emits the new memory, which replaces the old one; the judge compares the two. The
memory is all that reaches the next task. The in-context scaffold, for comparison, keeps earlier
tasks in the actor's conversation and writes nothing.
"""

import asyncio
import collections
import dataclasses
import logging

from rime_jax import streams
from rime_jax.judge import base as judge_base
from rime_jax.rollout import checked
from rime_jax.rollout.calls import InfrastructureFailure, blame
from rime_jax.rollout.context import Carried, Context, Keeper, Place
from rime_jax.rollout.episode import Episode
from rime_jax.rollout.trajectory import Rollout, Status, TaskRecord

_log = logging.getLogger(__name__)


async def run_rollout(
    context: Context, stream: streams.Stream, group: int, sibling: int, seed: tuple[int, ...],
    keeper: Keeper | None = None,
) -> Rollout:
    """Plays a stream from the empty memory. Never raises for what an environment, the sampler or
    the judge does: the task is tried again, then the rollout ends with its `failure`.

    Args:
      seed: with the place in the batch and stream it decides all randomness of the rollout.
      keeper: says where the rollout begins and is told of each task; the records are then those of
        the tasks from there on.
    """
    first, carried = (0, Carried()) if keeper is None else keeper.start(stream, group, sibling)
    records: list[TaskRecord] = []
    # The judge works while the next task is played.
    verdicts: list[asyncio.Task] = []
    retried: collections.Counter[Status] = collections.Counter()
    failure_status = None
    for position, task in enumerate(stream.tasks[first:], start=first):
        for attempt in range(context.options.retries + 1):
            place = Place(seed, group, sibling, position, attempt)
            try:
                record, carried = await Episode(context, task, place, carried).run()
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
        if keeper is not None:
            keeper.finished(group, sibling, position, record, carried)
        if context.given_memory is None and context.scaffold == "act_write":
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
