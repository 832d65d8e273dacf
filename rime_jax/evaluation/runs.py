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
from rime_jax.evaluation import tables
from rime_jax.evaluation.journal import Journal, Kept
from rime_jax.rollout.collect import collect
from rime_jax.rollout.context import Place, Speaker

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
    built: parts.Parts, stop: distributed.Stop | None = None, *, scaffold: str | None = None,
    writer: Speaker | None = None, journal: Journal | None = None,
) -> Played:
    """Plays the first held-out stream, or that of `eval.tasks_file`, with what the samplers have.

    Args, Raises: as `heldout.play`.
    """
    stop, journal = stop or distributed.Stop(distributed.ALONE), journal or Journal()
    scaffold = scaffold or built.config.eval.scaffolds[0]
    game = _Game(built, scaffold, writer, journal)
    runs = stop.processes.own(len(game.orders))
    tasks = stop.processes.own(len(game.stream.tasks))
    await stop.run(game.play(runs, tasks))
    shares = stop.processes.gather(game.rewards(runs, tasks))
    found = {key: reward for share in shares for key, reward in share.items()}
    return Played(
        scaffold,
        [[(task.id, found["run", i, t]) for t, task in enumerate(order.tasks)]
         for i, order in enumerate(game.orders)],
        {task.id: [found["baseline", t, k] for k in range(built.config.eval.baseline_samples)]
         for t, task in enumerate(game.stream.tasks)})


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

    se = score.gain.se[-1] if np.isnan(score.baseline_se) else score.total_gain_se
    return {
        "scaffold": played.scaffold,
        "reward": {"mean": score.reward.mean[-1], "se": score.reward.se[-1]},
        "gain": {"mean": score.gain.mean[-1], "se": se},
        "stateless": {"mean": score.baseline, "se": score.baseline_se},
        "reward_by_position": curve(score.reward),
        "gain_by_position": curve(score.gain),
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
        config = built.config
        self.stream = streams.StreamSource(
            built.domain.make_stream("heldout"), config.eval.seed).take(1)[0]
        self.orders = [protocol.shuffled(self.stream, run) for run in range(config.eval.runs)]
        self._config, self._journal = config, journal
        # A scaffold's own stateless plays: its prompt is another one.
        self._keys = f"{scaffold}/runs", f"{scaffold}/baseline"
        own = dict(scaffold="in_context" if scaffold == "in_context" else "act_write",
                   writer=writer)
        temperature = config.eval.temperature
        self._alone = built.context(temperature, given_memory=_nothing, **own)
        self._carrying = self._alone if scaffold == "stateless" else built.context(
            temperature, **own)

    async def play(self, runs: Sequence[int], tasks: Sequence[int]) -> None:
        """Plays these runs, and the baseline of these tasks."""
        seed = self._config.eval.seed
        single = [streams.Stream(self.stream.tasks[t].id, (self.stream.tasks[t],)) for t in tasks]
        await asyncio.gather(
            collect(self._carrying, [self.orders[i] for i in runs], 1, (seed, _RUNS), runs,
                    Kept(self._journal, self._keys[_RUNS])),
            collect(self._alone, single, self._config.eval.baseline_samples,
                    (seed, _BASELINE), tasks, Kept(self._journal, self._keys[_BASELINE])))

    def rewards(
        self, runs: Sequence[int], tasks: Sequence[int]
    ) -> dict[tuple[str, int, int], float]:
        """(`run`, its number, position) and (`baseline`, task, sample) → reward, nan if lost."""
        positions, samples = range(len(self.stream.tasks)), range(
            self._config.eval.baseline_samples)
        rows = {("run", i, t): self._journal.get(self._keys[_RUNS], i, 0, t)
                for i in runs for t in positions}
        rows |= {("baseline", t, k): self._journal.get(self._keys[_BASELINE], t, k, 0)
                 for t in tasks for k in samples}
        return {key: np.nan if row is None else row.reward for key, row in rows.items()}


def _nothing(task: streams.Task, place: Place) -> str:
    return ""
