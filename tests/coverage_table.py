"""How much of each package a measured run has executed: python -m tests.coverage_table."""

import collections
import pathlib
from collections.abc import Iterable

import coverage

ROOT = pathlib.Path(__file__).parents[1]


def main() -> None:
    measured = coverage.Coverage()
    measured.load()
    print(table(
        (pathlib.Path(file).relative_to(ROOT).parent.as_posix(), len(lines), len(missed))
        for file in measured.get_data().measured_files()
        if file.endswith(".py")  # Jinja's templates run under their own names.
        for _, lines, _, missed, _ in [measured.analysis2(file)]))


def table(files: Iterable[tuple[str, int, int]]) -> str:
    """One line a package, and the total last, of (package, its statements, those not run)."""
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for package, statements, missed in files:
        for name in (package, "total"):
            counts[name][0] += statements
            counts[name][1] += missed
    total = counts.pop("total", [0, 0])
    lines = [f"{'coverage':<28}{'statements':>12}{'not run':>10}{'run':>8}"]
    for package, (statements, missed) in [*sorted(counts.items()), ("total", total)]:
        # A package of empty files lacks nothing.
        share = 1 - missed / statements if statements else 1.0
        lines.append(f"{package:<28}{statements:>12}{missed:>10}{share:>8.1%}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
