"""What stops a run that goes wrong, before it wastes a night or loses what it has written."""

from collections.abc import Mapping, Sequence

from rime_jax import config as config_lib
from rime_jax import errors
from rime_jax.rollout.trajectory import Rollout
from rime_jax.tracking import metrics, run_dir

# Iterations in a row that train nothing and end a run.
_FAILED_ITERATIONS = 3


class TrainingError(errors.TransientError):
    """A run that cannot go on; the message says what happened and what to look at."""


class Progress:
    """Watches whether iterations train anything."""

    def __init__(self, directory: run_dir.RunDir):
        self._directory = directory
        self._failed = 0

    def check(self, step: int, rollouts: Sequence[Rollout], found: Mapping[str, float]) -> None:
        """Takes note of a finished iteration: all its rollouts, and its metrics.

        Raises:
          TrainingError: three iterations in a row without a finished task or a finite update.
        """
        lost = not any(rollout.tasks for rollout in rollouts)
        broken = any(v == 1 for k, v in found.items() if k.endswith("/not_finite"))
        self._failed = self._failed + 1 if lost or broken else 0
        if self._failed == _FAILED_ITERATIONS:
            failures = [r.failure.value for r in rollouts if r.failure is not None]
            what = (f"all rollouts were lost ({failures[0]} in the first)" if lost
                    else "loss, gradient or update were not finite (the batches are in "
                         f"{self._directory.bad_batches})")
            raise TrainingError(
                f"{_FAILED_ITERATIONS} iterations in a row trained nothing: {what}. The parameters "
                f"are those of step {step - _FAILED_ITERATIONS}; look at the log and at "
                f"{self._directory.metrics}, mend the cause (a lower learner.lr, the environment, "
                "the model's files) and start again"
            )


def check_nothing_is_missing(directory: run_dir.RunDir, step: int, checkpoint_every: int) -> None:
    """Refuses to cut metrics back to `step` by more than a kill can have cost.

    Raises:
      ConfigError: checkpoints were removed.
    """
    lines = metrics.read(directory.metrics)
    last = lines[-1]["step"] if lines else 0
    if last > step + 2 * checkpoint_every:
        raise config_lib.ConfigError(
            f"{directory.metrics} goes to step {last}, but the newest checkpoint is of step {step}:"
            " checkpoints were removed. Bring them back, or give the run a directory of its own "
            "(--set run_dir=...)"
        )
