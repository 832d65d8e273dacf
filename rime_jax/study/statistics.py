"""Means of runs on shared held-out chemistries, and what their intervals are about.

Values are [R runs, C chemistries]: every run is evaluated on the same chemistries. So there are two
samples, and three questions: these policies on other chemistries of the game (`chemistries`), other
runs on these chemistries (`runs`), other runs on other chemistries (`both`). A difference is taken
within pairs of runs of one warm start and seed first, chemistry by chemistry.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np
from scipy import stats

from rime_jax.study.results import Row

Interval = tuple[float, float]
Runs = Mapping[tuple[str, int], Row]

RESAMPLES = 10_000
_NONE = (math.nan, math.nan)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over runs and chemistries with 95 % intervals.

    Attributes:
      runs: how many.
      chemistries: bootstrap over chemistries, the runs fixed.
      over_runs: Student's t over the runs' means; nan with one run.
      both: bootstrap over runs and, crossed with them, over chemistries; nan with one run. Too
        narrow where runs are few, as a bootstrap is.
      by_warm_start: warm start → mean of its runs.
    """

    mean: float
    runs: int
    chemistries: Interval
    over_runs: Interval
    both: Interval
    by_warm_start: dict[str, float]

    @property
    def wide(self) -> Interval:
        """What holds both intervals that are about other runs; nan with one run."""
        return (min(self.over_runs[0], self.both[0]), max(self.over_runs[1], self.both[1]))


def level(runs: Runs, quantity: str) -> Estimate:
    """Of the runs of a cell.

    Raises:
      ValueError: there are none.
    """
    return _estimate({key: row.of(quantity) for key, row in runs.items()})


def difference(more: Runs, less: Runs, quantity: str) -> Estimate | None:
    """Of `more` less `less`, over the pairs that there are; None: there is none.

    A row of seed 0 that is alone with its warm start (the warm start's own) is paired with all runs
    of it.
    """
    pairs = {key: row.of(quantity) - other.of(quantity) for key, row in more.items()
             if (other := less.get(key) or _alone(less, key[0])) is not None}
    return _estimate(pairs) if pairs else None


def student(x: np.ndarray) -> Interval:
    """The 95 % interval of the mean of independent values [n]; nan for fewer than two."""
    if len(x) < 2:
        return _NONE
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
    return float(x.mean() - half), float(x.mean() + half)


def another(x: np.ndarray) -> Interval:
    """Where the next of such values lies in 95 of 100 cases, by Student's t; nan for fewer than
    two."""
    if len(x) < 2:
        return _NONE
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) * math.sqrt(1 + 1 / len(x))
    return float(x.mean() - half), float(x.mean() + half)


def _alone(rows: Runs, warm: str) -> Row | None:
    of_warm = [row for (own, _), row in rows.items() if own == warm]
    return of_warm[0] if len(of_warm) == 1 and of_warm[0].cell == "warm_start" else None


def _estimate(found: Mapping[tuple[str, int], np.ndarray]) -> Estimate:
    values = np.array(list(found.values()))
    means = np.nanmean(values, axis=1)
    warm = [name for name, _ in found]
    return Estimate(
        mean=float(means.mean()), runs=len(values),
        chemistries=_bootstrap(values, over_runs=False), over_runs=student(means),
        both=_bootstrap(values, over_runs=True) if len(values) > 1 else _NONE,
        by_warm_start={name: float(np.mean([m for m, own in zip(means, warm, strict=True)
                                            if own == name])) for name in dict.fromkeys(warm)})


def _bootstrap(values: np.ndarray, over_runs: bool) -> Interval:
    """95 % percentile interval of the mean of [R, C], over columns and, with `over_runs`, rows."""
    n_runs, n_chemistries = values.shape
    of_run = _drawn(n_runs, 1, RESAMPLES) if over_runs else np.ones((1, n_runs))
    of_chemistry = _drawn(n_chemistries, 0, RESAMPLES)
    present = ~np.isnan(values)
    sums = (of_run @ np.where(present, values, 0.0) * of_chemistry).sum(1)
    counts = (of_run @ present.astype(float) * of_chemistry).sum(1)
    # A resample of nothing but gaps has no mean.
    low, high = np.percentile(sums[counts > 0] / counts[counts > 0], [2.5, 97.5])
    return float(low), float(high)


@functools.cache
def _drawn(n: int, seed: int, resamples: int) -> np.ndarray:
    """[resamples, n]: how often each of n is drawn."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(float)
