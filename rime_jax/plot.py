"""Draws the held-out curves of runs side by side (needs the `plot` extra).

    python -m rime_jax.plot runs/rime_tiny runs/writer_untrained_tiny --out docs/curves.png
"""

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Sequence

from rime_jax import errors, experiment
from rime_jax.tracking import metrics

_CHARTS = {
    "eval/performance": "held-out performance (oracle = 1)",
    "eval/gain": "gain over the memory-blanked self",
    "memory/correct_facts": "share of correct facts in memory (training)",
}


def draw(runs: Sequence[pathlib.Path], out: pathlib.Path) -> None:
    """Writes one PNG with a chart for each of `_CHARTS`, a line a run.

    Raises:
      FileNotFoundError: a directory without metrics.jsonl.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(_CHARTS), figsize=(12, 3.4), constrained_layout=True)
    for run in runs:
        lines = metrics.read(run / "metrics.jsonl")
        if not lines:
            raise FileNotFoundError(f"{run} has no metrics.jsonl; name a run directory")
        for axis, tag in zip(axes, _CHARTS, strict=True):
            points = [(line["step"], line[tag]) for line in lines if line.get(tag) is not None]
            points += _final(run, tag)
            if points:
                axis.plot(*zip(*points, strict=True), label=run.name,
                          marker="." if "eval" in tag else "")
    for axis, title in zip(axes, _CHARTS.values(), strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("iteration")
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
    axes[0].legend(fontsize=9)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


def _final(run: pathlib.Path, tag: str) -> list[tuple[int, float]]:
    """The final evaluation's point, if the run has ended."""
    file = run / "eval" / "final.json"
    group, _, name = tag.partition("/")
    if group != "eval" or not file.is_file():
        return []
    for policy, row in json.loads(file.read_text())["policies"].items():
        step = re.match(r"step (\d+)", policy)
        if step and name in row:
            return [(int(step[1]), row[name][0])]
    return []


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="run directories")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="PNG to write")
    arguments = parser.parse_args(argv)
    with experiment.clean_errors():
        try:
            draw(arguments.runs, arguments.out)
        except ImportError:
            raise errors.UserError(
                f"this needs matplotlib: {sys.executable} -m pip install matplotlib") from None
        except FileNotFoundError as error:
            raise errors.UserError(str(error)) from None
    print(f"saved {arguments.out}")


if __name__ == "__main__":
    main()
