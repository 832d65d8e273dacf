"""All rollouts of an iteration: the siblings of every stream, side by side."""

import asyncio
from collections.abc import Sequence

from rime_jax import streams as streams_lib
from rime_jax.rollout.context import Context, Keeper
from rime_jax.rollout.loop import run_rollout
from rime_jax.rollout.trajectory import Rollout


async def collect(
    context: Context, streams: Sequence[streams_lib.Stream], siblings: int, seed: tuple[int, ...],
    groups: Sequence[int] | None = None, keeper: Keeper | None = None,
) -> list[Rollout]:
    """Plays each stream `siblings` times, all at once; siblings of a stream follow one another.

    Args:
      groups: the number of each stream among those of all processes; None: these are all. With
        `seed` it decides the randomness of a stream's rollouts, wherever they are played.
      keeper: of finished tasks; None: all rollouts begin anew.
    """
    numbers = range(len(streams)) if groups is None else groups
    return await asyncio.gather(*(
        run_rollout(context, stream, group, sibling, seed, keeper)
        for group, stream in zip(numbers, streams, strict=True)
        for sibling in range(siblings)
    ))
