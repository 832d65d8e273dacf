"""Calls into environments that may raise or hang."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from rime_jax.rollout.trajectory import Status

T = TypeVar("T")


class InfrastructureFailure(Exception):
    """Something around the policy broke; the task says nothing about the policy."""

    def __init__(self, status: Status, cause: BaseException | None = None):
        super().__init__(f"{status.value}: {cause!r}" if cause else status.value)
        self.status = status


async def call_environment(
    function: Callable[..., T], *args: object, inline: bool, timeout_s: float
) -> T:
    """Calls an environment; its failures become `env_crash` and `env_timeout`.

    A call that is not inline runs in a daemon thread of its own, not in a pool: a hung call must
    take no place from another and must not keep the program from ending.

    Raises:
      InfrastructureFailure: the call raised, or took longer than `timeout_s`.
    """
    if inline:
        try:
            return function(*args)
        except Exception as error:
            raise InfrastructureFailure(Status.ENV_CRASH, error) from error
    try:
        return await asyncio.wait_for(_in_thread(function, *args), timeout_s)
    except TimeoutError as error:
        raise InfrastructureFailure(Status.ENV_TIMEOUT, error) from error
    except Exception as error:
        raise InfrastructureFailure(Status.ENV_CRASH, error) from error


def _in_thread(function: Callable[..., T], *args: object) -> asyncio.Future:
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def deliver(setter: Callable[[object], None], value: object) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        try:
            result, setter = function(*args), future.set_result
        except TimeoutError as error:
            # The environment's own timeout is a crash of the environment, not ours.
            result, setter = RuntimeError(f"environment raised {error!r}"), future.set_exception
        except Exception as error:
            result, setter = error, future.set_exception
        try:
            loop.call_soon_threadsafe(deliver, setter, result)
        except RuntimeError:
            pass  # The loop has ended; nobody waits any more.

    threading.Thread(target=run, daemon=True, name="rime-environment").start()
    return future
