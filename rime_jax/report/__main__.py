"""Makes a report of runs: a static site that opens from a file, without a network.

    python -m rime_jax.report runs/rime runs/writer_untrained

Writes <first run>/report/index.html, or --out. Tables with the published numbers beside those of
the runs, the figures of the study, and every dumped rollout. Needs the extra `report`.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from rime_jax import experiment
from rime_jax.report import runs, site


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rime_jax.report", description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="run directories")
    parser.add_argument("--out", type=pathlib.Path,
                        help="directory of the report; default: report/ of the first run")
    arguments = parser.parse_args(argv)
    with experiment.clean_errors():
        found = runs.read(arguments.runs)
        page = site.write(found, arguments.out or found[0].path / "report", _plotly(), _say)
    _say("")
    for run in found:
        for problem in run.problems:
            print(f"{run.name}: {problem}", file=sys.stderr)
    size = sum(file.stat().st_size for file in page.parent.rglob("*") if file.is_file())
    print(f"saved {page} ({size / 1e6:.1f} MB); open {page.resolve().as_uri()}")


def _plotly() -> str:
    try:
        from plotly import offline
    except ImportError:
        raise runs.ReportError(
            f"the figures need plotly: {sys.executable} -m pip install 'rime_jax[report]', or "
            "plotly alone") from None
    return offline.get_plotlyjs()


def _say(line: str) -> None:
    """How far it is, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
