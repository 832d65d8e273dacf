"""Sums of what was earned over windows of positions.

Shapes: S streams (groups), G siblings of a stream, T positions of a stream. nan: no value.
"""

import numpy as np


def sums(
    x: np.ndarray, present: np.ndarray, window: np.ndarray, weights: np.ndarray | float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the values in the window of each position.

    Args:
      x: [S, G, T]; nan values are neither added nor counted.
      present: bool [S, G, T]; False where an infrastructure failure took the task away.
      window: bool [S or 1, T, T], whether j belongs to the window of t.
      weights: of the values in the sum, [T, T] or one for all.

    Returns:
      float64 and int64 [S, G, T]; the number is 0 where a task of the window is not present.
    """
    valid = ~np.isnan(x) & present
    whole = _over(~present, window) == 0
    return (_over(np.where(valid, x, 0.0), window * weights),
            np.where(whole, _over(valid, window), 0))


def means(x: np.ndarray, present: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Mean over the window of each position, float64 [S, G, T]; nan where `sums` counts 0."""
    total, count = sums(x, present, window)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def following(positions: int, first: int) -> np.ndarray:
    """The window t + first .. T of every position, bool [1, T, T]."""
    t = np.arange(positions)
    return (t[None, :] >= t[:, None] + first)[None]


def _over(x: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Sum over j of window[t, j] x[j]; integers where both are integers or bool."""
    kind = np.result_type(x, window, np.int64)
    window = np.broadcast_to(window, (len(x), *window.shape[1:]))
    return np.einsum("sgj,stj->sgt", x.astype(kind), window.astype(kind))
