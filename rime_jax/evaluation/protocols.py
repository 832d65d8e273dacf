"""What `eval.protocol` chooses between, under one interface: `heldout` streams and `runs`."""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from rime_jax import config as config_lib
from rime_jax import distributed, domains, parts
from rime_jax.evaluation import heldout, numbers, runs
from rime_jax.evaluation.journal import Journal
from rime_jax.rollout.context import Speaker

_log = logging.getLogger(__name__)

Played = heldout.Played | runs.Played


def prepared(built: parts.Parts) -> parts.Parts:
    """The parts with the tasks that are evaluated, which may be others than those of training.

    Raises:
      ConfigError: there are not enough of them, or they cannot be used.
    """
    if built.config.eval.tasks_file:
        built = dataclasses.replace(built, domain=domains.make_evaluated(built.config))
    check(built)
    return built


def check(built: parts.Parts) -> None:
    """Raises ConfigError where the tasks are not enough, or the domain has no false words."""
    if "corrupted" in built.config.eval.interventions and built.domain.false_words is None:
        raise config_lib.ConfigError(
            f"eval.interventions holds 'corrupted', but env.domain = {built.config.env.domain} has "
            "no false_words (docs/new_environment.md); add them, or leave 'corrupted' out")
    if built.config.eval.protocol == "streams":
        heldout.held_out_streams(built)
    else:
        runs.orders(built)


def tasks(built: parts.Parts) -> int:
    """How many tasks one player has to play in all scaffolds, at most."""
    scaffolds = built.config.eval.scaffolds
    if built.config.eval.protocol == "runs":
        return len(scaffolds) * runs.tasks(built)
    return sum(heldout.tasks(built, scaffold) for scaffold in scaffolds)


async def play(
    built: parts.Parts, rollouts: int, stop: distributed.Stop | None = None, *,
    scaffold: str | None = None, writer: Speaker | None = None, journal: Journal | None = None,
) -> Played:
    """Plays with what the samplers have, each process its share.

    Args:
      built: `prepared`.
      rollouts: of each held-out stream.
      stop: of the processes, all of which get the whole result; None: this one is alone.
      scaffold: one of `eval.scaffolds`; None: the first.
      writer: who writes, if not the actor's model.
      journal: has what was played before, and gets the rest.

    Raises:
      Stopped: it was told to stop.
    """
    stop = stop or distributed.Stop(distributed.ALONE)
    journal = Journal() if journal is None else journal
    scaffold = scaffold or built.config.eval.scaffolds[0]
    if built.config.eval.protocol == "streams":
        return await heldout.play(built, rollouts, stop, scaffold, writer, journal)
    return await runs.play(built, stop, scaffold, writer, journal)


def curves(played: Played) -> dict[str, float]:
    """Quantity → its mean, without those that have none."""
    if isinstance(played, heldout.Played):
        means = {name: np.nanmean(values) for name, values in numbers.statistics(played).items()
                 if not np.isnan(values).all()}
        return {name: float(mean) for name, mean in means.items()}
    try:
        return runs.totals(played)
    except ValueError as error:
        _log.warning("this evaluation has no numbers: %s", error)
        return {}


def results(played: Mapping[str, Any], built: parts.Parts) -> dict[str, Any]:
    """JSON of an evaluation: see `numbers.results` and `runs.results`.

    Args:
      played: row → what it played; the first is what the others are compared with.
      built: `prepared`.

    Raises:
      ConfigError: tasks of `runs` were lost to failures.
    """
    if built.config.eval.protocol == "runs":
        return runs.results(played, built.config)
    held_out = heldout.held_out_streams(built)
    return numbers.results(
        played, heldout.floors(built), built.config,
        [stream.id for stream in held_out], heldout.clusters(held_out))


def row_name(policy: str, scaffold: str) -> str:
    """The name of a row: the policy's, with the scaffold where that is not the usual one."""
    return policy if scaffold == "act_write" else f"{policy}, {scaffold}"
