"""All rollouts of an iteration: the siblings of every stream, side by side."""

import asyncio
from collections.abc import Sequence

from rime_jax import streams as streams_lib
from rime_jax.rollout.loop import Context, run_rollout
from rime_jax.rollout.trajectory import Rollout


async def collect(
    context: Context, streams: Sequence[streams_lib.Stream], siblings: int, seed: tuple[int, ...]
) -> list[Rollout]:
    """Plays each stream `siblings` times, all at once; siblings of a stream follow one another."""
    return await asyncio.gather(*(
        run_rollout(context, stream, group, sibling, seed)
        for group, stream in enumerate(streams)
        for sibling in range(siblings)
    ))
