"""Makes the pictures of docs/report.md from a report of runs.

    python -m docs.report.screenshots runs/rime runs/writer_untrained

Needs the extra `report`, playwright and Chromium (`benchmarks.browser`).
"""

import argparse
import pathlib
import sys
import tempfile
from typing import Any

from benchmarks import browser
from rime_jax.report import __main__ as program

HERE = pathlib.Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m docs.report.screenshots", description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        out = pathlib.Path(temporary) / "report"
        program.main([*arguments.runs, "--out", str(out)])
        try:
            _take(out)
        except RuntimeError as error:
            sys.exit(f"error: {error}")


def _take(report: pathlib.Path) -> None:
    with browser.launch() as chromium:
        with chromium.page(1280, 860) as page:
            _open(page, report / "index.html", "table")
            _save(page, "numbers", at="#numbers")
            _save(page, "figures", at="#exploration")
            _save(page, "stream", at="#outcomes")
        with chromium.page(1280, 860, dark=True) as page:
            _open(page, report / "browse.html", "article.task")
            page.keyboard.press("j")
            page.keyboard.press("o")
            _save(page, "rollout_dark")
        with chromium.page(1280, 860) as page:
            _open(page, report / "browse.html", "article.task")
            page.select_option("#other", index=2)
            page.wait_for_selector(".columns.two")
            _save(page, "side_by_side")
        for name, ready in (("index", "table"), ("browse", "article.task")):
            with chromium.page(390, 844) as page:
                _open(page, report / f"{name}.html", ready)
                _save(page, f"phone_{name}", at="#figures" if name == "index" else "#task-1")
        for fault in chromium.faults:
            print(fault)


def _open(page: Any, file: pathlib.Path, ready: str) -> None:
    page.goto(file.as_uri())
    page.wait_for_selector(ready)


def _save(page: Any, name: str, at: str = "") -> None:
    if at:
        page.locator(at).evaluate("element => element.scrollIntoView()")
    # Figures are drawn when they come near the screen, each in a moment of its own.
    page.wait_for_timeout(2000)
    path = HERE / f"{name}.png"
    page.screenshot(path=path)
    print(f"saved {path} ({path.stat().st_size / 1e3:.0f} kB)")


if __name__ == "__main__":
    main()
