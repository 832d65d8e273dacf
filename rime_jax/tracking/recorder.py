"""Everything an iteration writes but its checkpoint; the first process of a run has one."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from rime_jax import config as config_lib
from rime_jax.learner import loss
from rime_jax.tracking import metrics, progress, run_dir, tensorboard, texts

# On the terminal: its name → the metric.
_SHOWN = {
    "performance": "performance/mean", "gain": "eval/gain", "facts": "memory/correct_facts",
    "exploration": "exploration/score",
}


class Recorder:
    """metrics.jsonl, TensorBoard, samples and the terminal's line of one run."""

    def __init__(self, directory: run_dir.RunDir, config: ml_collections.ConfigDict, step: int):
        """Opens the files and cuts back what was written after `step`, the last that counts."""
        self._directory, self._track = directory, config.track
        # Without a checkpoint the initial policy is evaluated again, as step 0.
        first = step + 1 if step else 0
        metrics.truncate(directory.metrics, first - 1)
        self._log = metrics.MetricsLog(directory.metrics)
        self._board = tensorboard.TensorBoardWriter(directory.tb, first)
        self._board.hparams(dict(config_lib.flatten(config)))
        self._board.layout(texts.LAYOUT)
        self._line = progress.Progress(config.steps)

    def scalars(self, step: int, found: Mapping[str, Any]) -> None:
        """The line of a step."""
        self._log.write(step, found)
        self._board.scalars(step, metrics.jsonable(found))

    def evaluation(self, step: int, found: Mapping[str, float]) -> None:
        """What the last evaluation adds to the curves of a step that has its line."""
        self._board.scalars(step, found)

    def rollouts(
        self, step: int, rollouts: Sequence[Any], credit: Any, ratios: Mapping[str, np.ndarray],
    ) -> None:
        """Texts, histograms and samples of all rollouts of a step, when it is time for them.

        Args:
          ratios: parameter set → trained tokens in the bins of `loss.RATIO_EDGES`.
        """
        if due(self._track.text_every, step):
            for tag, text in texts.rollout_texts(rollouts).items():
                self._board.text(step, tag, text)
            self._board.histogram(step, "credit/act_advantages", credit.act_advantage)
            self._board.histogram(step, "credit/write_advantages", credit.write_advantage)
            for name, counts in ratios.items():
                self._board.counts(step, f"learner/{name}/ratios", loss.RATIO_EDGES, counts)
        if due(self._track.samples_every, step):
            self._directory.write_samples(step, texts.sample_rows(rollouts, credit))

    def progress(self, step: int, found: Mapping[str, Any]) -> None:
        """The terminal's line."""
        self._line.update(step, {k: found[v] for k, v in _SHOWN.items() if v in found})

    def end_line(self) -> None:
        """Ends the terminal's line, before something else is printed."""
        self._line.close()

    def close(self) -> None:
        """Closes the files."""
        self._log.close()
        self._board.close()
        self._line.close()


def due(every: int, step: int) -> bool:
    """Whether something is to be written at a step: the first and every so many; 0: never."""
    return every > 0 and (step % every == 0 or step == 1)
