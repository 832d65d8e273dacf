"""Means and 95 % intervals of what was played; differences are paired."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from rime_jax import config as config_lib
from rime_jax.evaluation import tables
from rime_jax.evaluation.heldout import Played


def statistics(played: Played) -> dict[str, np.ndarray]:
    """Per-stream values [S] of each reported quantity; all nan where it was not played."""
    half = played.with_memory.shape[2] // 2
    performance = per_stream(played.with_memory)
    stateless = per_stream(played.stateless)
    # Of the same tasks: the interval of their difference is that of the damage alone.
    unharmed = np.where(np.isnan(played.corrupted), np.nan, played.with_memory)
    return {
        "performance": performance,
        "stateless": stateless,
        "gain": performance - stateless,
        "improvement": per_stream(played.with_memory[:, :, half:])
        - per_stream(played.with_memory[:, :, :half]),
        "true_memory": per_stream(played.true_memory),
        "correct_facts": np.array([np.nanmean(x) if (~np.isnan(x)).any() else np.nan
                                   for x in played.facts]),
        "swapped": per_stream(played.swapped),
        "damage": per_stream(unharmed) - per_stream(played.corrupted),
        "recovered": per_stream(last(played.corrected)),
    }


def interval(
    values: np.ndarray, resamples: int, seed: int = 0, clusters: Sequence[str] | None = None
) -> tuple[float, float, float]:
    """(mean, low, high): 95 % percentile bootstrap over streams; nan streams are left out.

    Args:
      values: [S], of each stream.
      resamples: of the bootstrap.
      seed: of the resamples.
      clusters: of each stream a label; those of one label are drawn together. None: each alone.
    """
    present = ~np.isnan(values)
    values = values[present]
    if not values.size:
        return np.nan, np.nan, np.nan
    labels = np.arange(len(present)) if clusters is None else np.asarray(clusters)
    _, of_cluster = np.unique(labels[present], return_inverse=True)
    if np.max(of_cluster) + 1 == len(values):
        of_cluster = np.arange(len(values))
    sums, counts = np.bincount(of_cluster, values), np.bincount(of_cluster)
    drawn = np.random.default_rng(seed).integers(len(sums), size=(resamples, len(sums)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def results(
    policies: Mapping[str, Played], floor: Mapping[str, np.ndarray],
    config: ml_collections.ConfigDict, streams: Sequence[str] = (),
    clusters: Sequence[str] | None = None,
) -> dict[str, Any]:
    """JSON of an evaluation: rows, floors, and differences to the first policy.

    Raises:
      ConfigError: failures left nothing of a policy.

    Each quantity is [mean, low, high]; `by_position` holds means with memory. `units` holds what
    `evaluation.compare` pairs: the streams and, for each policy, the values of each.

    Args:
      streams: their ids.
      clusters: as `interval`.
    """
    for name, played in policies.items():
        if played.lost and np.isnan(played.with_memory).all():
            raise config_lib.ConfigError(
                f"{name}: failures ended all rollouts before a task had a result; the log says "
                "which. Once the cause is gone the same command plays them again")
    resamples = config.eval.bootstrap
    values = {name: statistics(played) for name, played in policies.items()}
    first, *others = values

    def mean(array: np.ndarray) -> tuple[float, float, float]:
        return interval(array, resamples, clusters=clusters)

    return {
        "protocol": "streams",
        "setting": tables.setting(config),
        "streams": config.eval.streams,
        "trials": config.env.trials,
        "policies": {
            name: {
                **_counts(played),
                **{q: mean(v) for q, v in values[name].items() if _reported(q, v)},
                **_corruption(played),
            }
            for name, played in policies.items()
        },
        "floors": {
            name: {
                "performance": mean(per_stream(array)),
                "improvement": mean(_halves(array)),
                "by_position": by_position(array),
            }
            for name, array in floor.items()
        },
        "oracle": {"performance": 1.0},
        "differences": {
            f"{name} - {first}": {
                q: mean(values[name][q] - values[first][q]) for q in values[name]
                if _reported(q, values[name][q] - values[first][q])
            }
            for name in others
        },
        "units": {
            "names": list(streams), "clusters": list(clusters or streams),
            "values": {name: {q: v.tolist() for q, v in own.items() if _reported(q, v)}
                       for name, own in values.items()},
        },
    }


def _counts(played: Played) -> dict[str, Any]:
    return {
        "scaffold": played.scaffold, "rollouts": played.with_memory.shape[1], "lost": played.lost,
        "by_position": by_position(played.with_memory), **cumulative_gain(played),
    }


def per_stream(array: np.ndarray) -> np.ndarray:
    """[S, R, T] → [S]: mean over tasks, then over the rollouts that have any."""
    return np.array([
        np.mean(means) if (means := [np.nanmean(r) for r in stream if (~np.isnan(r)).any()])
        else np.nan
        for stream in array
    ])


def by_position(array: np.ndarray) -> list[float]:
    """[S, R, T] → means of the positions that have any value."""
    return [float(np.nanmean(array[:, :, t])) for t in range(array.shape[2])
            if (~np.isnan(array[:, :, t])).any()]


def cumulative_gain(played: Played) -> dict[str, Any]:
    """The gain that has added up at each position: mean over streams and its standard error.

    Streams with a position that has no value are left out.
    """
    gains = _over_rollouts(played.with_memory) - _over_rollouts(played.stateless)
    whole = gains[~np.isnan(gains).any(axis=1)]
    if len(whole) == 0:
        return {}
    sums = whole.cumsum(axis=1)
    se = sums.std(axis=0, ddof=1) / np.sqrt(len(sums)) if len(sums) > 1 else [np.nan] * len(sums[0])
    return {"cumulative_gain_by_position": {"mean": sums.mean(axis=0).tolist(), "se": list(se)}}


def last(array: np.ndarray) -> np.ndarray:
    """[S, R, T] → [S, R, 1]: the last value of each rollout that is not nan."""
    found = np.full((*array.shape[:2], 1), np.nan)
    for at in np.ndindex(array.shape[:2]):
        own = array[at][~np.isnan(array[at])]
        if own.size:
            found[at] = own[-1]
    return found


def _over_rollouts(array: np.ndarray) -> np.ndarray:
    """[S, R, T] → [S, T]: means over the rollouts that have a value."""
    present = (~np.isnan(array)).sum(axis=1)
    return np.where(present > 0, np.nansum(array, axis=1) / np.maximum(present, 1), np.nan)


def _halves(array: np.ndarray) -> np.ndarray:
    half = array.shape[2] // 2
    return per_stream(array[:, :, half:]) - per_stream(array[:, :, :half])


def _corruption(played: Played) -> dict[str, Any]:
    """What became of the false facts: shares of the rollouts that had one."""
    fallen = ~np.isnan(played.corrected).all(axis=2)
    if not fallen.any():
        return {}
    begins = np.argmax(~np.isnan(played.corrected), axis=2)
    n_tasks = played.corrected.shape[2]
    # [rollouts, tasks since the false fact was read].
    since = {
        name: np.array([np.append(array[at][begins[at]:], [np.nan] * begins[at])
                        for at in zip(*np.nonzero(fallen), strict=True)])
        for name, array in (("corrected", played.corrected), ("still_false", played.still_false))}
    ends = last(played.corrected)[:, :, 0]
    at_position = [ends[fallen & (begins == t)] for t in range(n_tasks)]
    return {"corruption": {
        "rollouts": int(fallen.sum()),
        **{f"{name}_after": by_position(array[:, None]) for name, array in since.items()},
        "recovered_by_position": [
            float(np.nanmean(own)) if own.size and (~np.isnan(own)).any() else np.nan
            for own in at_position],
    }}


def _reported(quantity: str, values: np.ndarray) -> bool:
    return quantity not in tables.OPTIONAL or not np.isnan(values).all()
