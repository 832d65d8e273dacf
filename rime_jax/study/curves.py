"""Figures of the study: training curves of the main cells, mean and range over runs."""

import pathlib
from collections.abc import Iterator

import numpy as np

from rime_jax import config as config_lib
from rime_jax.study import plan
from rime_jax.study.results import EVERY, WARM_START, Results, Row

_CHARTS = {
    "eval/gain": "held-out gain",
    "exploration/score": "exploration score",
    "memory/correct_facts": "correct facts in memory",
    "memory/retention_exact": "items kept",
}


def name(setting: plan.Setting) -> str:
    """The file of a setting's figure."""
    return f"curves_{setting.name}.png"


def has_any(results: Results, setting: plan.Setting) -> bool:
    return any(results.select(setting.name, cell) for cell in plan.MAIN)


def draw(results: Results, directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """Writes a figure for each setting that has runs of main cells; yields its file.

    Raises:
      ConfigError: matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise config_lib.ConfigError(
            "figures need matplotlib: pip install -e '.[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for setting in plan.SETTINGS.values():
        if not has_any(results, setting):
            continue
        figure, axes = plt.subplots(1, len(_CHARTS), figsize=(13, 3.2), constrained_layout=True)
        for axis, (tag, title) in zip(axes, _CHARTS.items(), strict=True):
            for cell in plan.MAIN:
                own = [points for row in results.select(setting.name, cell).values()
                       if (points := _points(results, row, tag))]
                if own:
                    steps = [step for step, _ in own[0]]
                    values = np.array([[value for _, value in points] for points in own], float)
                    (line,) = axis.plot(steps, values.mean(0), label=plan.CELLS[cell].title)
                    axis.fill_between(steps, values.min(0), values.max(0), alpha=0.15,
                                      color=line.get_color(), linewidth=0)
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("iteration")
            axis.grid(alpha=0.3)
            axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
        axes[0].legend(fontsize=8)
        directory.mkdir(parents=True, exist_ok=True)
        figure.savefig(directory / name(setting), dpi=80)
        plt.close(figure)
        yield directory / name(setting)


def _points(results: Results, row: Row, tag: str) -> list[tuple[float, float]]:
    """(iteration, value) of one run; evaluations end with the final one."""
    if tag.startswith("eval/"):
        end = len(row.training["performance/mean"]) * EVERY
        final = float(np.nanmean(row.of(tag.partition("/")[2])))
        begin = results.rows.get((row.setting, row.warm, WARM_START, "", 0))
        first = [] if begin is None else [(0, float(np.nanmean(begin.of(tag.partition("/")[2]))))]
        return [*first, *((s, v) for s, v in row.during[tag] if 0 < s < end), (end, final)]
    return [((i + 0.5) * EVERY, np.nan if value is None else value)
            for i, value in enumerate(row.training[tag])]
