"""What siblings' rewards so far let one expect of the next window: a baseline for the writer.

The writer of m_t decides when r_1 .. r_t are known. Any function of them taken off its reward
leaves the expected gradient as it is and changes the variance alone. The method takes off the mean
of the last K; here each of the K has a coefficient, fitted by least squares (docs/credit.md).

Shapes: S streams (groups), G siblings of a stream, T positions of a stream, K rewards of the window
before, the latest first. nan: no value.
"""

import numpy as np

# Singular values below this share of the largest are noise of sums in float64.
_RCOND = 1e-9


def expected(following: np.ndarray, performance: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The part of the next window that the window before foretells among siblings.

    The coefficients of a stream come from the *other* streams, all positions together. Fitted to
    its own rewards they would know what its memories earned: the expected gradient would change.

    Args:
      following: [S, G, T], mean of the window after t.
      performance: [S, G, T], r_t on a scale of 1; nan: left out.
      before: bool [S or 1, T, T], whether j belongs to the window before t.

    Returns:
      float64 [S, G, T], a deviation from the siblings' mean; 0 where there is nothing to go by (one
      stream, siblings that are all alike).
    """
    counted = ~np.isnan(following)
    x = _among_siblings(_latest_first(performance, before), counted[..., None])
    y = _among_siblings(following, counted)
    # A product with exact zeros, not a difference of sums: what is left out must leave no trace.
    others = 1.0 - np.eye(len(y))
    xx = np.einsum("rs,sgtk,sgtl->rkl", others, x, x)
    xy = np.einsum("rs,sgtk,sgt->rk", others, x, y)
    coefficients = np.einsum("rkl,rl->rk", np.linalg.pinv(xx, _RCOND, hermitian=True), xy)
    return np.einsum("sgtk,sk->sgt", x, coefficients)


def _latest_first(performance: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Rewards of the window before each position, [S, G, T, K]; nan where it does not reach."""
    positions = performance.shape[-1]
    before = np.broadcast_to(before, (len(performance), positions, positions))
    horizon = max(1, int(before.sum(-1).max(initial=1)))
    found = np.full((*performance.shape, horizon), np.nan)
    for lag in range(min(horizon, positions)):
        t = np.arange(lag, positions)
        inside = before[:, t, t - lag][:, None]
        found[:, :, lag:, lag] = np.where(inside, performance[:, :, : positions - lag], np.nan)
    return found


def _among_siblings(x: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Deviations from the mean of the siblings that count and have a value; 0 for the others."""
    valid = counted & ~np.isnan(x)
    total = np.where(valid, x, 0.0).sum(1, keepdims=True)
    return np.where(valid, x - total / np.maximum(valid.sum(1, keepdims=True), 1), 0.0)
