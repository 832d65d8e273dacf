"""The protocol of Continual Learning Bench: one stream in several orders, reward and gain.

See `envs.codebase.protocol` for orders and sums. All runs and the stateless baseline are played
side by side.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from rime_jax import config as config_lib
from rime_jax import distributed, parts, streams
from rime_jax.envs.codebase import protocol
from rime_jax.evaluation import heldout, tables
from rime_jax.evaluation.journal import Journal, Kept
from rime_jax.rollout.collect import collect
from rime_jax.rollout.context import Speaker

# Labels of the randomness.
_RUNS, _BASELINE = 0, 1


@dataclasses.dataclass(frozen=True)
class Played:
    """What one system reached.

    Attributes:
      scaffold: one of `eval.scaffolds`.
      runs: of each run the (task, reward) pairs in the order of play; nan where one was lost.
      baseline: task → rewards of the stateless plays.
    """

    scaffold: str
    runs: list[list[tuple[str, float]]]
    baseline: dict[str, list[float]]


async def play(
    built: parts.Parts, stop: distributed.Stop, scaffold: str, writer: Speaker | None,
    journal: Journal,
) -> Played:
    """Plays one stream in all its orders, and stateless; see `protocols.play`."""
    game = _Game(built, scaffold, writer, journal)
    mine = stop.processes.own(len(game.orders)), stop.processes.own(len(game.stream.tasks))
    await stop.run(game.play(*mine))
    found: dict[tuple[str, int, int], float] = {}
    for share in stop.processes.gather(game.rewards(*mine)):
        found |= share
    samples = range(built.config.eval.baseline_samples)
    return Played(
        scaffold,
        [[(task.id, found.get(("run", i, t), np.nan)) for t, task in enumerate(order.tasks)]
         for i, order in enumerate(game.orders)],
        {task.id: [found.get(("baseline", t, k), np.nan) for k in samples]
         for t, task in enumerate(game.stream.tasks)})


def orders(built: parts.Parts) -> list[streams.Stream]:
    """The stream of each run: the first held-out one, or that of `eval.tasks_file`."""
    config = built.config.eval
    source = streams.StreamSource(built.domain.make_stream("heldout"), config.seed)
    (stream,) = source.take(1)
    return [protocol.shuffled(stream, run) for run in range(config.runs)]


def tasks(built: parts.Parts) -> int:
    """How many tasks are played."""
    (first, *_) = orders(built)
    return (built.config.eval.runs + built.config.eval.baseline_samples) * len(first.tasks)


def totals(played: Played) -> dict[str, float]:
    """Cumulative reward, gain and the stateless baseline's reward.

    Raises:
      ValueError: a task was lost to a failure.
    """
    score = protocol.score(played.runs, played.baseline)
    return {"reward": float(score.reward.mean[-1]), "gain": float(score.gain.mean[-1]),
            "stateless": score.baseline}


def results(
    played: Mapping[str, Played], config: ml_collections.ConfigDict
) -> dict[str, Any]:
    """JSON of an evaluation: cumulative reward and gain of each system, with standard errors.

    `units` holds what `evaluation.compare` pairs: the tasks.

    Raises:
      ConfigError: tasks were lost to failures; names them.
    """
    rows, values = {}, {}
    for name, own in played.items():
        try:
            score = protocol.score(own.runs, own.baseline)
        except ValueError as error:
            raise config_lib.ConfigError(
                f"{name}: {error}. What was finished is kept: the same command plays the rest"
            ) from error
        rows[name] = _row(own, score)
        values[name] = {"reward": list(score.reward_by_instance.values()),
                        "gain": list(score.gain_by_instance.values())}
    tasks = [task for task, _ in next(iter(played.values())).runs[0]]
    return {
        "protocol": "runs", "setting": tables.setting(config), "runs": config.eval.runs,
        "baseline_samples": config.eval.baseline_samples, "instances": tasks, "policies": rows,
        "units": {"names": sorted(tasks), "clusters": sorted(tasks), "values": values},
    }


def _row(played: Played, score: protocol.Score) -> dict[str, Any]:
    def curve(of: protocol.Curve) -> dict[str, Any]:
        return {"mean": of.mean.tolist(), "se": of.se.tolist()}

    late, late_se = protocol.late_minus_early(played.runs)
    se = score.gain.se[-1] if np.isnan(score.baseline_se) else score.total_gain_se
    return {
        "scaffold": played.scaffold,
        "reward": {"mean": float(score.reward.mean[-1]), "se": float(score.reward.se[-1])},
        "gain": {"mean": float(score.gain.mean[-1]), "se": float(se)},
        "stateless": {"mean": score.baseline, "se": score.baseline_se},
        "late_minus_early": {"mean": late, "se": late_se},
        "cumulative_reward_by_position": curve(score.reward),
        "cumulative_gain_by_position": curve(score.gain),
        "reward_by_task": dict(score.reward_by_instance),
        "gain_by_task": dict(score.gain_by_instance),
        "played": [[list(pair) for pair in run] for run in played.runs],
        "baseline": played.baseline,
    }


class _Game:
    """One system, and the tasks that it has played."""

    def __init__(
        self, built: parts.Parts, scaffold: str, writer: Speaker | None, journal: Journal
    ):
        self._config = built.config.eval
        self.orders = orders(built)
        self.stream = self.orders[0]
        in_context = scaffold == "in_context"
        carrying = built.context(self._config.temperature, writer=writer,
                                 scaffold="in_context" if in_context else "act_write")
        self._alone = dataclasses.replace(carrying, given_memory=heldout.nothing)
        self._carrying = self._alone if scaffold == "stateless" else carrying
        # The prompts of the in-context scaffold are others, and so is its baseline.
        baseline = "in_context/baseline" if in_context else "baseline"
        self._baseline = Kept(journal, baseline, heldout.nothing)
        self._runs = Kept(journal, f"{scaffold}/runs", self._carrying.given_memory)

    async def play(self, runs: Sequence[int], tasks: Sequence[int]) -> None:
        """Plays these runs, and the baseline of these tasks."""
        seed = self._config.seed
        await asyncio.gather(
            collect(self._carrying, [self.orders[i] for i in runs], 1, (seed, _RUNS), runs,
                    self._runs),
            collect(self._alone, [self._single(t) for t in tasks],
                    self._config.baseline_samples, (seed, _BASELINE), tasks, self._baseline))

    def rewards(
        self, runs: Sequence[int], tasks: Sequence[int]
    ) -> dict[tuple[str, int, int], float]:
        """(`run`, its number, position) and (`baseline`, task, sample) → reward, but for what was
        lost."""
        found = {("run", i, row.position): row.reward
                 for i in runs for row in self._runs.rows(self.orders[i], i, 0)}
        return found | {
            ("baseline", t, k): row.reward
            for t in tasks for k in range(self._config.baseline_samples)
            for row in self._baseline.rows(self._single(t), t, k)}

    def _single(self, task: int) -> streams.Stream:
        own = self.stream.tasks[task]
        return streams.Stream(own.id, (own,))
