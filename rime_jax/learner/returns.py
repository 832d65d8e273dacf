"""What the two baselines of the study pay both roles (method section 3).

Shapes: S streams (groups), G siblings of a stream, T positions of a stream. nan: no value. Both
read rewards on a scale of 1, since they add up what different tasks paid.
"""

import numpy as np

from rime_jax.learner import windows

# What a memory that is too long, or does not parse, costs its writer under CoD.
COD_PENALTY = 0.1


def cod(
    performance: np.ndarray, well_formed: np.ndarray, present: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns of ACT and of WRITE under CoD: the mean reward of what follows.

    The solve at t earns mean(r_t .. r_T). The memory after t earns the mean of its own penalty
    (-0.1 if malformed, else 0) and of r_{t+1} .. r_T. Advantages are these less the mean of the
    siblings; they are not divided by a deviation (`credit.centred`).

    Args:
      performance: [S, G, T], r_t on a scale of 1; nan values leave the means.
      well_formed: bool [S, G, T], of the memory written after t.
      present: bool [S, G, T].

    Returns:
      Two float64 [S, G, T]: ACT's, and WRITE's. nan where nothing that counts has a value, where a
      failure took a task of the window away, and for the last memory, which nobody reads.
    """
    positions = performance.shape[-1]
    act = windows.means(performance, present, windows.following(positions, 0))
    total, count = windows.sums(performance, present, windows.following(positions, 1))
    penalty = np.where(well_formed, 0.0, -COD_PENALTY)
    write = np.where(present & (count > 0), (penalty + total) / (count + 1), np.nan)
    return act, write


def skillrise(performance: np.ndarray, present: np.ndarray, discount: float) -> np.ndarray:
    """Returns of WRITE under SkillRise: sum over j > t of discount^(j - t) r_j.

    ACT earns r_t there, as in the method, and both are scored by z.

    Args:
      performance: [S, G, T], r_t on a scale of 1; nan adds nothing.
      present: bool [S, G, T].
      discount: gamma, in [0, 1].

    Returns:
      float64 [S, G, T]; nan as in `cod`.
    """
    t = np.arange(performance.shape[-1])
    weights = float(discount) ** abs(t[None, :] - t[:, None])
    total, count = windows.sums(performance, present, windows.following(len(t), 1), weights)
    return np.where(present & (count > 0), total, np.nan)
