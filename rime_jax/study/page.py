"""Writes the generated parts of docs/study.md and its figures from docs/study/results.json.

    python -m rime_jax.study.page

What stands between `<!-- generated: NAME -->` and `<!-- end -->` is written anew, the rest stays.
The figures need the extra `plot`.
"""

import argparse
import pathlib
import re
from collections.abc import Sequence

from rime_jax import config as config_lib
from rime_jax import experiment
from rime_jax.study import curves, plan, tables
from rime_jax.study import results as results_lib
from rime_jax.tracking import metrics

PAGE = pathlib.Path("docs/study.md")
RESULTS = pathlib.Path("docs/study/results.json")
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str, results: results_lib.Results) -> str:
    """The page with its generated parts made from these results.

    Raises:
      ConfigError: it asks for a part that there is not.
    """
    made = parts(results)

    def part(found: re.Match[str]) -> str:
        if found[2] not in made:
            raise config_lib.ConfigError(
                f"the page has a part {found[2]!r}; there are {', '.join(made)}")
        body = made[found[2]]
        return f"{found[1]}\n{body}\n\n{found[3]}" if body else f"{found[1]}{found[3]}"

    return _PART.sub(part, page)


def parts(results: results_lib.Results) -> dict[str, str]:
    """Name → Markdown of each generated part."""
    found = {"runs": runs(results)}
    for made in (tables.cells, tables.differences, tables.orderings, tables.positions,
                 tables.memories, tables.examples, tables.exploration, tables.swaps,
                 tables.swap_differences):
        found[made.__name__] = "\n\n".join(
            f"**{setting.title}**\n\n{table}" for setting in plan.SETTINGS.values()
            if (table := made(results, setting)))
    found["curves"] = "\n\n".join(
        f"![{setting.title}: training curves]({RESULTS.parent.name}/{curves.name(setting)})"
        for setting in plan.SETTINGS.values() if curves.has_any(results, setting))
    return found


def runs(results: results_lib.Results) -> str:
    """The settings, and how many of the planned runs of each are in the tables."""
    lines = []
    for setting in plan.SETTINGS.values():
        own = [row for row in results.rows.values() if row.setting == setting.name]
        trained = [row for row in own if row.cell != results_lib.WARM_START and not row.writer]
        starts = len(setting.warm_starts) * len(setting.seeds)
        if not own:
            lines.append(f"- **{setting.title}** (`{setting.name}`): {setting.says} Not run yet: "
                         f"0 of {len(setting.cells) * starts} planned.")
        else:
            lines.append(
                f"- **{setting.title}** (`{setting.name}`): {setting.says} "
                f"Runs: {len(trained)} of {len(setting.cells) * starts} planned (cells: "
                f"{len({row.cell for row in trained})} of {len(setting.cells)}; warm starts: "
                f"{len({row.warm for row in own})} of {len(setting.warm_starts)}); pairs of one "
                f"run's actor and another's writer: {len([row for row in own if row.writer])} of "
                f"{len(setting.swaps) * (len(setting.swaps) - 1) * starts}; held-out chemistries: "
                f"{len(results.chemistries[setting.name])}, 4 rollouts each.")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="rime_jax.study.page", description=__doc__.split("\n\n")[0])
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS,
                        help=f"default: {RESULTS}")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, help=f"default: {PAGE}")
    arguments = parser.parse_args(argv)
    with experiment.clean_errors():
        results = results_lib.load(arguments.results)
        text = written(arguments.page.read_text(), results)
        metrics.write_atomically(arguments.page, text.encode())
        print(f"saved {arguments.page}")
        for figure in curves.draw(results, arguments.page.parent / RESULTS.parent.name):
            print(f"saved {figure}")


if __name__ == "__main__":
    main()
