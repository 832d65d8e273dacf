"""The figures of the first page as data for plotly.js.

Colours are names of the style sheet (`var(--series-1)`), so that a figure follows the page from
light to dark. A figure for which no run has data is left out.
"""

from collections.abc import Mapping, Sequence

from rime_jax.report.figures import stream, systems, training
from rime_jax.report.figures.traces import Drawn, Figure, Style
from rime_jax.report.runs import Run
from rime_jax.report.statistics import Position
from rime_jax.report.tables import Table

_SERIES = 8
_DASHES = ("solid", "dash", "dot", "dashdot")


def figures(drawn: Sequence[Drawn], sheets: Sequence[Table]) -> list[Figure]:
    """The figures of the study that these runs can draw, in its order."""
    found: list[Figure | None] = [
        systems.figure(sheet) for sheet in sheets if sheet.has_ours and sheet.id != "data"]
    found += [
        training.exploration(drawn), training.learning(drawn), stream.positions(drawn),
        stream.outcomes(drawn), stream.gain(drawn), training.health(drawn),
    ]
    return [figure for figure in found if figure is not None]


def draw(
    index: int, run: Run, positions: Sequence[Position], scores: Mapping[int, float]
) -> Drawn:
    """A run with the line of its place in the report and what its rollouts say."""
    style = Style(f"var(--series-{index % _SERIES + 1})",
                  _DASHES[index // _SERIES % len(_DASHES)])
    return Drawn(run, style, positions, scores)
