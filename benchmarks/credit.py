"""Does the writer's reward measure the memory or luck? From the rollouts that runs recorded.

    python -m benchmarks.credit runs/rime_tiny runs/writer_untrained_tiny …

Prints the tables of docs/credit.md: a row for each experiment and half of its training, all runs
of an experiment together. Runs are of Alchemy in the compact form, whose truth is known: the
streams of each iteration are dealt again from the run's seed. Everything is compared among siblings
at the same position.
"""

import argparse
import dataclasses
import pathlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rime_jax import config as config_lib
from rime_jax import domains, experiment, streams
from rime_jax.learner import credit
from rime_jax.rollout.domain import Domain
from rime_jax.rollout.metrics import within_group_correlation
from rime_jax.tracking.run_dir import RunDir

BASELINES = ("window", "fitted", "none")
HORIZONS = (1, 2, 3, 5)


@dataclasses.dataclass(frozen=True)
class Played:
    """Rollouts of S streams, all arrays [S, G, T]; nan: not played.

    Attributes:
      performance: r_t on a scale of 1.
      memory: m_t, text.
      held: correct facts in m_t; goal_held: 1 if the best stone is one of them.
      known: correct facts in m_{t-1} or shown by task t, which the writer can keep; goal_known.
      items: facts that m_{t-1} claims, right or wrong.
      turns: of task t.
    """

    performance: np.ndarray
    memory: np.ndarray
    held: np.ndarray
    goal_held: np.ndarray
    known: np.ndarray
    goal_known: np.ndarray
    items: np.ndarray
    turns: np.ndarray


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.credit", description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="run directories")
    with experiment.clean_errors():
        print("\n\n".join(tables(read(parser.parse_args(argv).runs))))


def read(runs: Sequence[pathlib.Path]) -> dict[str, list[Played]]:
    """'experiment, half of its training' → its recorded iterations.

    Raises:
      ConfigError: a run has no dumps, or its domain no truth.
    """
    found = defaultdict(list)
    for path in runs:
        run, config = RunDir(path), config_lib.load(str(path / "config.json"))
        domain = domains.make(config)
        if domain.true_memory is None:
            raise config_lib.ConfigError(f"{path}: what a memory of this domain knows cannot be "
                                         "told; name runs of Alchemy with env.form = compact")
        if not run.sample_steps():
            raise config_lib.ConfigError(
                f"{path} holds no rollouts (samples/); record some with track.samples_every")
        for step in run.sample_steps():
            half = "first half" if step <= config.steps / 2 else "second half"
            found[f"{config.name}, {half}"].append(
                played(run.read_samples(step), config, domain, step))
    return dict(found)


def played(
    rows: Sequence[dict[str, Any]], config: Any, domain: Domain, step: int
) -> Played:
    """One dump as arrays, its memories measured by the truth of their streams."""
    source = streams.StreamSource(domain.make_stream("train"), config.seed)
    source.restore((step - 1) * config.rollout.streams_per_step)
    dealt = source.take(config.rollout.streams_per_step)
    shape = (len(dealt), config.rollout.group_size, max(len(s.tasks) for s in dealt))
    found = {field.name: np.full(shape, np.nan) for field in dataclasses.fields(Played)}
    found["memory"] = np.full(shape, None, object)
    for row in rows:
        if "reward" not in row:  # The place of a failure.
            continue
        at = row["group"], row["sibling"], row["position"] - 1
        truth = _facts(domain, domain.true_memory(dealt[at[0]].tasks[at[2]]))
        before = _facts(domain, row["memory_before"])
        held = _facts(domain, row["memory_after"]).items() & truth.items()
        known = (before.items() & truth.items()) | _shown(row, truth)
        performance = row["performance"]
        found["performance"][at] = np.nan if performance is None else performance
        found["memory"][at] = row["memory_after"]
        for name, facts in (("held", held), ("known", known)):
            found[name][at] = len(facts)
            found[f"goal_{name}"][at] = "best" in dict(facts)
        found["items"][at], found["turns"][at] = len(before), row["turns"]
    return Played(**found)


def tables(found: dict[str, list[Played]]) -> Iterator[str]:
    """The page's tables, in markdown."""
    yield _table(
        "Correlation of the improvement with",
        ["baseline", "facts held", "facts kept", "last reward", "next reward"],
        ([name, baseline, *(f"{c:+.2f}" for c in _correlations(own, baseline))]
         for name, own in found.items() for baseline in BASELINES))
    yield _table(
        "Variance among siblings",
        ["next window", "window taken off", "best c", "c = 1", "best c for all", "fitted", "luck"],
        ([name, *_variances(own)] for name, own in found.items()))
    yield _table(
        "Best coefficient of the window taken off, by position",
        [str(t + 1) for t in range(next(iter(found.values()))[0].performance.shape[2] - 1)],
        ([name, *(f"{c:.2f}" for c in _coefficients(own))] for name, own in found.items()))
    yield _table(
        "Share of the next window's variance that is foretold by",
        ["past rewards", "and items, turns", "or facts known", "facts held alone"],
        ([name, *(f"{share:.2f}" for share in _foretold(own))] for name, own in found.items()))
    yield _table(
        "Correlation with the facts kept, by K: window / fitted",
        [f"K = {k}" for k in HORIZONS],
        ([name, *(" / ".join(f"{_with_kept(own, b, k):+.2f}" for b in ("window", "fitted"))
                  for k in HORIZONS)] for name, own in found.items()))


def improvement(own: Sequence[Played], baseline: str, horizon: int = 3) -> np.ndarray:
    """Of all iterations, [N S, G, T]; fitted within each, as in training."""
    return np.concatenate([
        credit.improvement(p.performance, ~np.isnan(p.turns), horizon, baseline=baseline)
        for p in own])


def variance(x: np.ndarray) -> float:
    """Among siblings at the same position; nan values are left out."""
    free = np.maximum((~np.isnan(x)).sum(1) - 1, 0).sum()
    return float(np.nansum(_deviations(x) ** 2) / free)


def luck(own: Sequence[Played]) -> float:
    """Variance of the next window among siblings that hold the same memory, word for word."""
    following, memory = improvement(own, "none"), _all(own, "memory")
    total, free = 0.0, 0
    for s, t in np.ndindex(following.shape[0], following.shape[2]):
        alike = defaultdict(list)
        for text, value in zip(memory[s, :, t], following[s, :, t], strict=True):
            if not np.isnan(value):
                alike[text].append(value)
        total += sum(np.var(values) * len(values) for values in alike.values())
        free += sum(len(values) - 1 for values in alike.values())
    return total / free if free else np.nan


def _correlations(own: Sequence[Played], baseline: str) -> list[float]:
    w, performance = improvement(own, baseline), _all(own, "performance")
    return [within_group_correlation(w, x) for x in (
        _all(own, "held"), _kept(own), performance, _earlier(performance, -1))]


def _kept(own: Sequence[Played]) -> np.ndarray:
    """Facts held, less what past rewards and what could have been kept let one expect."""
    history = [*_past(own), _all(own, "known"), _all(own, "goal_known")]
    return left_over(_all(own, "held"), history)


def _with_kept(own: Sequence[Played], baseline: str, horizon: int) -> float:
    return within_group_correlation(improvement(own, baseline, horizon), _kept(own))


def _variances(own: Sequence[Played]) -> list[str]:
    following, w = improvement(own, "none"), improvement(own, "window")
    off, best = following - w, _coefficient(own)
    return [f"{variance(following):.3f}", f"{variance(off):.3f}", f"{best:.2f}",
            f"{variance(w):.3f}", f"{variance(following - best * off):.3f}",
            f"{variance(improvement(own, 'fitted')):.3f}", f"{luck(own):.3f}"]


def _coefficient(own: Sequence[Played], position: int | slice = slice(None)) -> float:
    """c of the least variance of next window - c × window taken off."""
    following = improvement(own, "none")
    off = following - improvement(own, "window")
    x, y = (_deviations(a)[..., position] for a in (off, following))
    power = np.nansum(x * x)
    return float(np.nansum(x * y) / power) if power > 0 else np.nan


def _coefficients(own: Sequence[Played]) -> list[float]:
    return [_coefficient(own, t) for t in range(own[0].performance.shape[2] - 1)]


def _foretold(own: Sequence[Played]) -> list[float]:
    following = improvement(own, "none")
    seen = [*_past(own), _all(own, "items"), _all(own, "turns")]
    known = [_all(own, "known"), _all(own, "goal_known")]
    held = [_all(own, "held"), _all(own, "goal_held")]
    return [1 - variance(left_over(following, features)) / variance(following)
            for features in (_past(own), seen, [*_past(own), *known], held)]


def left_over(y: np.ndarray, features: Sequence[np.ndarray]) -> np.ndarray:
    """What regressions among siblings, one at each position, do not foretell of y.

    Streams are cut into two halves, and what one half teaches is asked of the other.
    """
    x = np.nan_to_num(np.stack([_deviations(f) for f in features], -1))
    left = _deviations(y)
    target = np.nan_to_num(left)
    second = np.arange(len(y)) >= len(y) / 2
    for t in range(y.shape[2]):
        for asked in (second, ~second):
            taught = x[~asked][:, :, t].reshape(-1, len(features))
            learnt = np.linalg.lstsq(taught, target[~asked][:, :, t].ravel(), rcond=None)[0]
            left[asked, :, t] -= x[asked][:, :, t] @ learnt
    return left


def _facts(domain: Domain, text: str) -> dict[str, str]:
    items, _ = domain.memory_format.parse_items(text)
    return {item.key: item.value for item in items if item.kind == "fact"}


def _shown(row: dict[str, Any], truth: dict[str, str]) -> set[tuple[str, str]]:
    """The facts that the environment's messages of a task show, as the compact form words them."""
    told = " ".join(text for speaker, text in row["transcript"] if speaker == "environment")
    return {(key, value) for key, value in truth.items()
            if (f"{value} +15" if key == "best" else f"{key} {value}") in told}


def _all(own: Sequence[Played], name: str) -> np.ndarray:
    return np.concatenate([getattr(p, name) for p in own])


def _past(own: Sequence[Played]) -> list[np.ndarray]:
    performance = _all(own, "performance")
    return [_earlier(performance, lag) for lag in range(3)]


def _earlier(x: np.ndarray, lag: int) -> np.ndarray:
    """x of lag positions before (after, where lag is negative); nan where there is none."""
    positions = np.arange(x.shape[-1]) - lag
    inside = (positions >= 0) & (positions < x.shape[-1])
    return np.where(inside, x[..., np.clip(positions, 0, x.shape[-1] - 1)], np.nan)


def _deviations(x: np.ndarray) -> np.ndarray:
    count = np.maximum((~np.isnan(x)).sum(1, keepdims=True), 1)
    return x - np.nansum(x, 1, keepdims=True) / count


def _table(title: str, columns: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = [["experiment", *columns], ["---"] * (len(columns) + 1), *rows]
    return "\n".join([title, "", *("| " + " | ".join(line) + " |" for line in lines)])


if __name__ == "__main__":
    main()
