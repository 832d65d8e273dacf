"""TensorBoard event files: scalars, texts, histograms, hyper-parameters, chart layout.

Written with tensorboard's own event writer and protocol buffers; TensorFlow is not needed.
"""

import os
import time
from collections.abc import Mapping, Sequence

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.hparams import summary_v2 as hparams_summary
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer import event_file_writer
from tensorboard.util import tensor_util

_HISTOGRAM_BINS = 30


class TensorBoardWriter:
    """Writes one event file into a directory; a resumed run adds a second file to it."""

    def __init__(self, path: str | os.PathLike, first_step: int = 0):
        """Opens a new event file in `path`.

        Args:
          path: the run's tb/ directory; made if missing.
          first_step: the first step this process will write. Readers drop what an earlier, killed
            process wrote at this step and later.
        """
        self._writer = event_file_writer.EventFileWriter(os.fspath(path))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(session_log=start), first_step)

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """One point for each tag; None (a metric without a value this step) is left out.

        The file is flushed, so that a kill loses no point of a finished step.
        """
        points = [
            summary_pb2.Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in values.items()
            if value is not None
        ]
        self._add(event_pb2.Event(summary=summary_pb2.Summary(value=points)), step)
        self._writer.flush()

    def text(self, step: int, tag: str, markdown: str) -> None:
        """A text in Markdown; half a surrogate pair, which no file can hold, becomes `?`."""
        self._add_tensor(step, tag, np.array([markdown.encode("utf-8", "replace")], object),
                         text_metadata.create_summary_metadata(tag, ""))

    def histogram(self, step: int, tag: str, values: Sequence[float] | np.ndarray) -> None:
        """The distribution of the finite numbers in `values`, any shape; none: nothing written."""
        finite = np.asarray(values, np.float64).ravel()
        # Clipped, since the width of the bins must be finite too.
        finite = np.clip(finite[np.isfinite(finite)], -1e30, 1e30)
        if not finite.size:
            return
        counts, edges = np.histogram(finite, bins=_HISTOGRAM_BINS)
        self.counts(step, tag, edges, counts)

    def counts(
        self, step: int, tag: str, edges: Sequence[float] | np.ndarray, counts: np.ndarray
    ) -> None:
        """A histogram whose values were counted elsewhere: [n + 1] bounds and [n] counts."""
        edges = np.asarray(edges)
        self._add_tensor(step, tag, np.stack([edges[:-1], edges[1:], counts], axis=1),
                         histogram_metadata.create_summary_metadata(tag, ""))

    def hparams(self, values: Mapping[str, bool | int | float | str | Sequence]) -> None:
        """The run's hyper-parameters, a row of the HParams tab; sequences are shown as text."""
        shown = {
            name: value if isinstance(value, (bool, int, float, str)) else str(value)
            for name, value in values.items()
        }
        self._add(event_pb2.Event(summary=hparams_summary.hparams_pb(shown)), 0)

    def layout(self, categories: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """Arranges the Custom Scalars tab: {category: {chart title: regular expressions of tags}}.

        The first category is open, the others are closed.
        """
        layout = layout_pb2.Layout(category=[
            layout_pb2.Category(title=category, closed=i > 0, chart=[
                layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=tags))
                for title, tags in charts.items()
            ])
            for i, (category, charts) in enumerate(categories.items())
        ])
        self._add_tensor(0, layout_metadata.CONFIG_SUMMARY_TAG,
                         np.array(layout.SerializeToString(), object),
                         layout_metadata.create_summary_metadata())

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add_tensor(
        self, step: int, tag: str, tensor: np.ndarray, metadata: summary_pb2.SummaryMetadata
    ) -> None:
        value = summary_pb2.Summary.Value(
            tag=tag, tensor=tensor_util.make_tensor_proto(tensor), metadata=metadata
        )
        self._add(event_pb2.Event(summary=summary_pb2.Summary(value=[value])), step)

    def _add(self, event: event_pb2.Event, step: int) -> None:
        event.step = step
        event.wall_time = time.time()
        self._writer.add_event(event)
