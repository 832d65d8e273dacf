"""Protocol of Codebase Adaptation in Continual Learning Bench: orders, cumulative reward and gain.

Each of five runs meets all instances, tablib's before tenacity's, with state that is carried from
one to the next. The stateless baseline meets each instance with its state reset. The gain of an
instance is its reward less that of the baseline on the same instance.
"""

import collections
import dataclasses
import itertools
import random
import re
from collections.abc import Mapping, Sequence

import numpy as np

from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import tasks as tasks_lib

RUNS = 5
# In the order in which every run meets them.
REPOSITORIES = ("tablib", "tenacity")
_SEED = 42


def orders(
    tasks: Sequence[tasks_lib.CodeTask], runs: int = RUNS,
    repositories: Sequence[str] = REPOSITORIES,
) -> list[streams_lib.Stream]:
    """The stream of each run; one segment for each repository.

    Run 0 is the canonical order: pull requests by number; tasks that all have none stay as they
    stand. The others are those of `shuffled`. Payloads are instance ids.

    Raises:
      ValueError: a task is of another repository or stands twice, or some have a number in their
        id and others have none.
    """
    groups: list[list[str]] = [[] for _ in repositories]
    for task in _canonical(tasks):
        name = short_name(task)
        if name not in repositories:
            raise ValueError(f"{task.instance_id} is of {task.repository}; the protocol is for "
                             f"{list(repositories)}")
        groups[repositories.index(name)].append(task.instance_id)
    names = [name for group in groups for name in group]
    if len(set(names)) < len(names):
        raise ValueError(f"an instance stands twice among {names}")
    first = streams_lib.Stream(
        "benchmark",
        tuple(streams_lib.Task(name, name, i) for i, group in enumerate(groups) for name in group),
        {"repositories": list(repositories)})
    return [shuffled(first, run) for run in range(runs)]


def shuffled(stream: streams_lib.Stream, run: int) -> streams_lib.Stream:
    """The stream of run r: as it stands for r = 0, else shuffled inside each segment, with one
    `random.Random(42 + r)` for all of them in turn."""
    rng = random.Random(_SEED + run)
    tasks = []
    for _, segment in itertools.groupby(stream.tasks, key=lambda task: task.segment):
        order = list(segment)
        if run:
            rng.shuffle(order)
        tasks += order
    return streams_lib.Stream(f"{stream.id}-{run}", tuple(tasks), {**stream.info, "run": run})


def short_name(task: tasks_lib.CodeTask) -> str:
    """The name of a task's repository without its owner."""
    return task.repository.split("/")[-1]


def _canonical(tasks: Sequence[tasks_lib.CodeTask]) -> Sequence[tasks_lib.CodeTask]:
    numbers = {task.instance_id: re.search(r"-(\d+)$", task.instance_id) for task in tasks}
    without = [name for name, found in numbers.items() if found is None]
    if len(without) == len(numbers):
        return tasks
    if without:
        raise ValueError(f"{without[0]} does not end in the number of a pull request, which gives "
                         "the canonical order, and others do; give all of them one, or none")
    return sorted(tasks, key=lambda task: int(numbers[task.instance_id][1]))


@dataclasses.dataclass(frozen=True)
class Curve:
    """Something that adds up over the N positions of a run.

    Attributes:
      mean: [N] over runs; the last is the total.
      se: [N] standard error over runs; nan with one run.
    """

    mean: np.ndarray
    se: np.ndarray


@dataclasses.dataclass(frozen=True)
class Score:
    """What a system reaches; sums over instances, as the study reports them.

    Attributes:
      reward: cumulative reward by position.
      gain: cumulative gain by position; its standard error takes the baseline as given.
      baseline: sum of the baseline's mean rewards.
      baseline_se: its standard error over samples; nan where an instance has one sample only.
      reward_by_instance, gain_by_instance: means over runs.
    """

    reward: Curve
    gain: Curve
    baseline: float
    baseline_se: float
    reward_by_instance: Mapping[str, float]
    gain_by_instance: Mapping[str, float]

    @property
    def total_gain_se(self) -> float:
        """Standard error of the total gain, the baseline's own included."""
        return float(np.hypot(self.gain.se[-1], self.baseline_se))


def score(
    runs: Sequence[Sequence[tuple[str, float]]], baseline: Mapping[str, Sequence[float]]
) -> Score:
    """Scores complete runs.

    Args:
      runs: of each run the (instance id, reward) pairs in the order of play.
      baseline: instance id → rewards of the stateless system, one or more samples.

    Raises:
      ValueError: runs are not of the same instances, once each; the baseline lacks one of them; or
        a reward is not finite (an instance that was lost must be played again: it is no 0).
    """
    _check(runs, baseline)
    names = sorted(name for name, _ in runs[0])
    samples = {name: np.array(baseline[name], float) for name in names}
    base = {name: float(values.mean()) for name, values in samples.items()}
    rewards = np.array([[reward for _, reward in run] for run in runs], float)
    gains = rewards - np.array([[base[name] for name, _ in run] for run in runs])
    by_instance = {
        name: float(np.mean([dict(run)[name] for run in runs])) for name in names}
    variance = sum(values.var(ddof=1) / len(values) if len(values) > 1 else np.nan
                   for values in samples.values())
    return Score(
        reward=_curve(rewards), gain=_curve(gains), baseline=sum(base.values()),
        baseline_se=float(np.sqrt(variance)), reward_by_instance=by_instance,
        gain_by_instance={name: by_instance[name] - base[name] for name in names})


def late_minus_early(runs: Sequence[Sequence[tuple[str, float]]]) -> tuple[float, float]:
    """How much better the same instance goes when it comes late: (mean, standard error).

    The reward of an instance in the runs where it stands behind its mean position, less that in
    those where it stands before it; over the instances that have both. What weights remember of an
    instance does not depend on its position, what a memory brings does (method section 6, point 1).
    nan where no instance has both (one run), the error where only one has.
    """
    met: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)
    for run in runs:
        for position, (name, reward) in enumerate(run):
            met[name].append((position, reward))
    found = []
    for own in met.values():
        positions, rewards = np.array(own, float).T
        late, early = positions > positions.mean(), positions < positions.mean()
        if late.any():
            found.append(rewards[late].mean() - rewards[early].mean())
    if not found:
        return np.nan, np.nan
    error = np.std(found, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else np.nan
    return float(np.mean(found)), float(error)


def _curve(values: np.ndarray) -> Curve:
    """[R, N] of single positions → sums up to each."""
    sums = values.cumsum(axis=1)
    n = len(sums)
    spread = sums.std(axis=0, ddof=1) if n > 1 else np.full(sums.shape[1], np.nan)
    return Curve(sums.mean(axis=0), spread / np.sqrt(n))


def _check(
    runs: Sequence[Sequence[tuple[str, float]]], baseline: Mapping[str, Sequence[float]]
) -> None:
    if not runs or not runs[0]:
        raise ValueError("there is no run to score")
    first = {name for name, _ in runs[0]}
    for i, run in enumerate(runs):
        names = [name for name, _ in run]
        if set(names) != first or len(names) != len(first):
            raise ValueError(f"run {i} has not the instances of run 0, once each: {names}")
        lost = [name for name, reward in run if not np.isfinite(reward)]
        if lost:
            raise ValueError(f"run {i} has no reward for {lost}; play that run again")
    for name in sorted(first):
        values = baseline.get(name, ())
        if not len(values) or not np.isfinite(values).all():
            raise ValueError(f"the baseline has no reward for {name}, or a sample of it was lost; "
                             "play it again")
