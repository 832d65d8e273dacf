"""Calls into parts that may raise anything or hang."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from rime_jax.rollout import checked
from rime_jax.rollout.trajectory import Status
from rime_jax.sampler.base import SamplerStop

T = TypeVar("T")


class InfrastructureFailure(Exception):
    """Something around the policy broke; the task says nothing about the policy."""

    def __init__(self, status: Status, cause: BaseException):
        super().__init__(f"{status.value}: {checked.shown(cause)}")
        self.status = status


@contextlib.contextmanager
def blame(status: Status) -> Iterator[None]:
    """Turns everything that the body raises into an `InfrastructureFailure` of that status.

    Exits and cancellations too, where they are the called part's own. Only what happens to the
    task itself passes through: somebody cancels it, or it is thrown away unfinished; and a
    `SamplerStop`, which ends the program.
    """
    task = asyncio.current_task()
    try:
        yield
    except SamplerStop:
        raise
    except BaseException as error:
        # A coroutine that is thrown away is closed by whoever lets go of it, not by its task.
        thrown_away = asyncio.current_task(task.get_loop()) is not task
        if thrown_away or (isinstance(error, asyncio.CancelledError) and task.cancelling()):
            raise
        raise InfrastructureFailure(status, error) from error


async def call_environment(function: Callable[[], T], *, inline: bool, timeout_s: float) -> T:
    """Calls into an environment; its failures become `env_crash` and `env_timeout`.

    A call that is not inline runs in a daemon thread of its own, not in a pool: a hung call must
    take no place from another and must not keep the program from ending.

    Raises:
      InfrastructureFailure: the call raised, or took longer than `timeout_s`.
    """
    with blame(Status.ENV_CRASH):
        if inline:
            return function()
        answer = _in_thread(function)
    try:
        async with asyncio.timeout(timeout_s):
            result, error = await answer
    except TimeoutError as late:
        raise InfrastructureFailure(Status.ENV_TIMEOUT, late) from late
    if error is not None:
        raise InfrastructureFailure(Status.ENV_CRASH, error) from error
    return result


def _in_thread(function: Callable[[], T]) -> asyncio.Future:
    """The future (result, None) or (None, error): an error as a value cannot be mistaken for one
    of the event loop's own, such as a cancellation."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def deliver(answer: tuple[T | None, BaseException | None]) -> None:
        if not future.done():
            future.set_result(answer)

    def run() -> None:
        answer: tuple[T | None, BaseException | None]
        try:
            answer = function(), None
        except BaseException as error:
            answer = None, error
        try:
            loop.call_soon_threadsafe(deliver, answer)
        except RuntimeError:
            pass  # The loop has ended; nobody waits any more.

    threading.Thread(target=run, daemon=True, name="rime-environment").start()
    return future
