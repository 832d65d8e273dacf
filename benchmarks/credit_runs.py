"""Two experiments compared by runs that share warm start and seed.

    python -m benchmarks.credit_runs rime_tiny baseline_fitted_tiny runs/w0 runs/w1

Each directory holds runs of one warm start, as a sweep leaves them: NAME_seed0, NAME_seed1, …
Prints second less first: of held-out performance and gain, and of the mean training performance
(the area under its curve; all iterations cost the same). Runs are the units of the last rows:
held-out streams tell how well a run is measured, seeds how much another run would differ.
"""

import argparse
import json
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from rime_jax import config as config_lib
from rime_jax import experiment
from rime_jax.evaluation.compare import compare
from rime_jax.tracking import metrics

QUANTITIES = ("performance", "gain", "training")
# Half the width of an interval that would tell a difference worth having, and the pairs from which
# their spread is known well enough to say how many give it.
_WORTH, _ENOUGH = 0.02, 4


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.credit_runs", description=__doc__.split("\n\n")[0])
    parser.add_argument("first", help="name of the experiment that is taken off")
    parser.add_argument("second", help="name of the other one")
    parser.add_argument("directories", nargs="+", type=pathlib.Path, help="one of each warm start")
    own = parser.parse_args(argv)
    with experiment.clean_errors():
        print(table({str(b): differences(a, b)
                     for a, b in pairs(own.first, own.second, own.directories)}))


def pairs(
    first: str, second: str, directories: Sequence[pathlib.Path]
) -> list[tuple[pathlib.Path, pathlib.Path]]:
    """Finished runs of both experiments with one directory and seed.

    Raises:
      ConfigError: there are none.
    """
    found = []
    for directory in directories:
        for run in sorted(directory.glob(f"{first}_seed*")):
            other = directory / run.name.replace(first, second, 1)
            if all((r / "eval/final.json").is_file() for r in (run, other)):
                found.append((run, other))
    if not found:
        raise config_lib.ConfigError(
            f"no finished runs of {first} and {second} share a seed in "
            f"{', '.join(map(str, directories))}; name the directories that a sweep wrote to")
    return found


def differences(first: pathlib.Path, second: pathlib.Path) -> dict[str, float]:
    """Quantity → second - first of one pair of runs."""
    evaluated = compare(*(json.loads((run / "eval/final.json").read_text())
                          for run in (first, second)))
    curves = [[line["performance/mean"] for line in metrics.read(run / "metrics.jsonl")
               if "performance/mean" in line] for run in (first, second)]
    steps = min(map(len, curves))
    area = [np.mean(curve[:steps]) for curve in curves]
    return {"performance": evaluated["performance"][0], "gain": evaluated["gain"][0],
            "training": float(area[1] - area[0])}


def table(found: dict[str, dict[str, float]]) -> str:
    """A row for each pair; the mean with a 95 % interval (Student's t); how many would decide."""
    return "\n".join(f"| {' | '.join(row)} |" for row in _rows(found))


def _rows(found: dict[str, dict[str, float]]) -> Iterator[list[str]]:
    yield ["run", *QUANTITIES]
    yield ["---"] * (1 + len(QUANTITIES))
    for name, values in found.items():
        yield [name, *(f"{values[q]:+.3f}" for q in QUANTITIES)]
    columns = {q: np.array([values[q] for values in found.values()]) for q in QUANTITIES}
    yield [f"mean of {len(found)}", *(_mean(column) for column in columns.values())]
    yield [f"pairs for ± {_WORTH}", *(_needed(column) for column in columns.values())]


def _mean(x: np.ndarray) -> str:
    if len(x) < 2:
        return f"{x.mean():+.3f}"
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return f"{x.mean():+.3f} [{x.mean() - half:+.3f}, {x.mean() + half:+.3f}]"


def _needed(x: np.ndarray) -> str:
    """Pairs of runs after which an interval has the half width `_WORTH`."""
    return "–" if len(x) < _ENOUGH else str(int(np.ceil((1.96 * x.std(ddof=1) / _WORTH) ** 2)))


if __name__ == "__main__":
    main()
