"""From rewards to advantages: who is paid for what, compared with whom (method sections 2 and 3).

Shapes: S streams (groups), G siblings of a stream, T positions of a stream. nan: no value.
"""

import dataclasses
from typing import Any

import numpy as np

from rime_jax.learner import history, returns, windows


@dataclasses.dataclass(frozen=True)
class Rewards:
    """Everything credit is computed from.

    Attributes:
      reward: [S, G, T], r_t.
      performance: [S, G, T], r_t on a scale of 1; nan where the task has none.
      exploration: [S, G, T], e_t; nan where the judge failed.
      well_formed: bool [S, G, T], of the memory written after t.
      present: bool [S, G, T]; False where an infrastructure failure took the task away. The other
        arrays may hold anything there.
      segments: int [S, T], segment of each task.
    """

    reward: np.ndarray
    performance: np.ndarray
    exploration: np.ndarray
    well_formed: np.ndarray
    present: np.ndarray
    segments: np.ndarray


@dataclasses.dataclass(frozen=True)
class Credit:
    """What each sample earns. All arrays are float64 [S, G, T].

    Attributes:
      act_advantage: A_ACT = z(r) + lambda z(e); with `credit = cod` the first term is the return
        of CoD less the siblings' mean.
      act_weight: 1; 0 where the ACT sample leaves the loss and its denominator.
      write_advantage: A_WRITE = z(w); CoD: likewise.
      write_weight: the same for the WRITE sample.
      improvement: the next window less the baseline, before well-formedness counts; nan: no value.
      writer_reward: w_t, or the baseline's return; nan: no value.
      zero_variance: fraction of the groups with at least two values whose standard deviation is
        below the floor, for `reward`, `exploration` and `writer`; a term without any is left out.
    """

    act_advantage: np.ndarray
    act_weight: np.ndarray
    write_advantage: np.ndarray
    write_weight: np.ndarray
    improvement: np.ndarray
    writer_reward: np.ndarray
    zero_variance: dict[str, float]


def credit(rewards: Rewards, config: Any) -> Credit:
    """Advantages of both roles (method section 3).

    Args:
      rewards: of whole groups.
      config: the `reward` part of a config; `credit` says whose definitions hold.
    """
    present = rewards.present
    difference = improvement(
        rewards.performance,
        present,
        config.horizon,
        rewards.segments if config.horizon_stays_in_segment else None,
        config.history_baseline,
    )
    earned = np.where(present, rewards.reward, np.nan)
    if config.credit == "cod":
        earned, written = returns.cod(rewards.performance, rewards.well_formed, present)
    elif config.credit == "skillrise":
        written = returns.skillrise(rewards.performance, present, config.discount)
    else:
        written = writer_reward(difference, rewards.well_formed, present, config)
    terms = {
        "reward": earned,
        "exploration": np.where(present, rewards.exploration, np.nan),
        "writer": written,
    }
    # CoD takes the siblings' mean off its returns and leaves their scale.
    unscaled = ("reward", "writer") if config.credit == "cod" else ()
    scores = {name: centred(x, config.std_floor) if name in unscaled
              else z(x, config.std_floor, config.eps) for name, x in terms.items()}
    counts = {name: _has_value(x) & scores[name][1] for name, x in terms.items()}
    act_weight = counts["reward"]
    if config.exploration > 0:
        act_weight = act_weight | counts["exploration"]
    return Credit(
        act_advantage=scores["reward"][0] + config.exploration * scores["exploration"][0],
        act_weight=act_weight.astype(np.float64),
        write_advantage=scores["writer"][0],
        write_weight=counts["writer"].astype(np.float64),
        improvement=difference,
        writer_reward=written,
        zero_variance=_zero_variance(terms, scores),
    )


def improvement(
    performance: np.ndarray,
    present: np.ndarray,
    horizon: int,
    segments: np.ndarray | None = None,
    baseline: str = "window",
) -> np.ndarray:
    """Mean performance over t+1..min(t+K, T) minus what history gives (method section 2).

    Args:
      performance: [S, G, T]; nan values leave the means.
      present: bool [S, G, T].
      horizon: K.
      segments: int [S, T]; both windows then stay in the segment of t.
      baseline: what is taken off. `window`: the mean over max(1, t-K+1)..t; `fitted`: what
        `history.expected` makes of the same rewards; `none`: nothing.

    Returns:
      float64 [S, G, T]; nan where a window holds no value (so at the last position) or a task that
      is not present. Of the window before, `fitted` and `none` need the task at t alone.
    """
    t, j = np.ogrid[: performance.shape[-1], : performance.shape[-1]]
    near = True if segments is None else segments[:, :, None] == segments[:, None, :]
    after = near & ((j > t) & (j <= t + horizon))[None]
    before = near & ((j <= t) & (j > t - horizon))[None]
    following = np.where(present, windows.means(performance, present, after), np.nan)
    if baseline == "window":
        return following - windows.means(performance, present, before)
    if baseline == "fitted":
        known = np.where(present, performance, np.nan)
        return following - history.expected(following, known, before)
    return following


def writer_reward(
    difference: np.ndarray, well_formed: np.ndarray, present: np.ndarray, config: Any
) -> np.ndarray:
    """w_t, float64 [S, G, T]; nan where the writer has no reward (always at the last position).

    `improvement`: a well-formed memory earns the difference and the format bonus, a malformed one
    what `malformed` says: 0, or the smallest reward of its well-formed siblings at the position (0
    where there is none). `format`: 1 and the bonus against 0. `none`: nan throughout.

    Args:
      difference: [S, G, T], from `improvement`.
      well_formed: bool [S, G, T].
      present: bool [S, G, T].
      config: the `reward` part of a config.
    """
    if config.writer == "none":
        return np.full(difference.shape, np.nan)
    if config.writer == "format":
        paid = np.where(well_formed, 1.0 + config.format_bonus, 0.0)
        has_reward = present.copy()
        has_reward[:, :, -1] = False
    else:
        good = difference + config.format_bonus
        malformed = np.zeros_like(good)
        if config.malformed == "group_min":
            comparable = well_formed & _has_value(good)
            smallest = np.where(comparable, good, np.inf).min(1, keepdims=True)
            malformed += np.where(np.isfinite(smallest), smallest, 0.0)
        paid = np.where(well_formed, good, malformed)
        has_reward = _has_value(difference)
    return np.where(has_reward, paid, np.nan)


def z(x: np.ndarray, std_floor: float, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """(x - mean) / (std + eps) among the siblings that have a value (method section 3).

    Args:
      x: [S, G, T]; nan values are neither counted nor scored.
      std_floor: smallest population standard deviation that means anything.
      eps: added to the standard deviation.

    Returns:
      z, float64 [S, G, T], 0 where there is no value or the group is not informative; and
      informative, bool [S, 1, T]: two values or more, and a deviation not below the floor.
    """
    deviation, std, informative = _moments(x, std_floor)
    scale = np.where(informative, std + eps, 1.0)
    return np.where(informative, deviation / scale, 0.0), informative


def centred(x: np.ndarray, std_floor: float) -> tuple[np.ndarray, np.ndarray]:
    """x - mean among the siblings that have a value; arguments and results as those of `z`."""
    deviation, _, informative = _moments(x, std_floor)
    return np.where(informative, deviation, 0.0), informative


def _moments(x: np.ndarray, std_floor: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deviations from the siblings' mean [S, G, T]; their std, and whether it says anything."""
    valid = _has_value(x)
    count = valid.sum(1, keepdims=True)
    n = np.maximum(count, 1)
    mean = np.where(valid, x, 0.0).sum(1, keepdims=True) / n
    deviation = np.where(valid, x - mean, 0.0)
    std = np.sqrt((deviation**2).sum(1, keepdims=True) / n)
    return deviation, std, (count >= 2) & (std >= std_floor) & (std > 0)


def _zero_variance(
    terms: dict[str, np.ndarray], scores: dict[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, float]:
    fractions = {}
    for name, x in terms.items():
        comparable = _has_value(x).sum(1, keepdims=True) >= 2
        if comparable.any():
            fractions[name] = float(1 - scores[name][1][comparable].mean())
    return fractions


def _has_value(x: np.ndarray) -> np.ndarray:
    return ~np.isnan(x)
