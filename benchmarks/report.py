"""Size of a report of a long run, and the time until its pages can be read in Chromium.

    python -m benchmarks.report                        200 dumps × 16 rollouts × 12 tasks
    python -m benchmarks.report --dumps 3 --keep DIR   smaller; the report stays in DIR

The rollouts are made up: conversations of five messages of random words for each task, and a memory
that grows by a line a task. Needs the extra `report`, playwright and Chromium
(`benchmarks.browser`).
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import browser
from rime_jax import config as config_lib
from rime_jax.report import __main__ as program
from rime_jax.tracking import metrics
from rime_jax.tracking.run_dir import RunDir

GROUP, STREAMS = 8, 2
# Page, what is waited for, and how it is found.
_PAGES = (
    ("index.html", "the tables are shown", "table"),
    ("index.html", "a figure is drawn", ".plot .main-svg"),
    ("browse.html", "a task is shown", "article.task"),
)
_STATUSES = ("solved", "failed", "out_of_turns", "format_errors")
_SPEAKERS = ("environment", "actor", "environment", "actor", "writer")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__.split("\n\n")[0])
    parser.add_argument("--dumps", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--words", type=int, default=120, help="of one message")
    parser.add_argument("--repeats", type=int, default=5, help="times each page is opened")
    parser.add_argument("--keep", type=pathlib.Path, help="new directory for the run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = arguments.keep or pathlib.Path(temporary) / "long"
        make_run(path, arguments.dumps, arguments.tasks, arguments.words)
        raw = sum(len(json.dumps(own)) for step in RunDir(path).sample_steps()
                  for own in RunDir(path).read_samples(step))
        print(f"{arguments.dumps} dumps × {GROUP * STREAMS} rollouts × {arguments.tasks} tasks: "
              f"{raw / 1e6:.0f} MB of JSON")
        began = time.perf_counter()
        program.main([str(path)])
        print(f"made in {time.perf_counter() - began:.1f} s")
        try:
            measure(path / "report", arguments.repeats)
        except RuntimeError as error:
            sys.exit(f"error: {error}")


def make_run(path: pathlib.Path, dumps: int, tasks: int, words: int) -> None:
    """A run directory with `dumps` iterations of made-up rollouts and curves."""
    config = config_lib.default()
    config.name, config.steps, config.env.trials = "long", dumps, tasks
    run = RunDir(path)
    run.create_or_resume(config, resume=False)
    rng = np.random.default_rng(0)
    vocabulary = np.array([_word(rng) for _ in range(4000)])
    with metrics.MetricsLog(run.metrics) as log:
        for step in range(1, dumps + 1):
            run.write_samples(step, _rows(rng, vocabulary, tasks, words, step))
            log.write(step, {
                "performance/mean": float(0.3 + 0.2 * step / dumps + rng.normal(0, 0.02)),
                "exploration/score": float(0.4 + rng.normal(0, 0.05)),
                "memory/tokens": float(20 + 0.1 * step), "memory/well_formed": 0.95,
                **({"eval/performance": 0.3 + 0.2 * step / dumps, "eval/gain": 0.1 * step / dumps}
                   if step % 20 == 0 else {})})


def measure(report: pathlib.Path, repeats: int) -> None:
    """Prints size and opening times of a report."""
    size = sum(file.stat().st_size for file in report.rglob("*") if file.is_file())
    print(f"size of the report: {size / 1e6:.1f} MB")
    print("| page | when | seconds, median (worst) | CPU seconds | files read | MB |")
    print("|---|---|---|---|---|---|")
    with browser.launch() as chromium:
        for name, said, selector in _PAGES:
            times, busy, files = zip(*(opened(chromium, report / name, selector)
                                       for _ in range(repeats)), strict=True)
            read = sum(file.stat().st_size for file in files[0])
            print(f"| {name} | {said} | {statistics.median(times):.2f} ({max(times):.2f}) | "
                  f"{statistics.median(busy):.2f} | {len(files[0])} | {read / 1e6:.1f} |")
        for fault in chromium.faults:
            print(fault)


def opened(
    chromium: browser.Browser, page: pathlib.Path, selector: str
) -> tuple[float, float, list[pathlib.Path]]:
    """Opens a page in a fresh profile.

    Returns:
      Seconds until `selector` is there; CPU seconds of the page's main thread, which other work on
      the machine does not change much; files that were read.
    """
    files: list[pathlib.Path] = []

    def note(request: Any) -> None:
        if request.url.startswith("file:"):
            files.append(pathlib.Path(request.url.removeprefix("file://")))

    with chromium.page() as tab:
        tab.on("request", note)
        tools = tab.context.new_cdp_session(tab)
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})
        began = time.perf_counter()
        tab.goto(page.resolve().as_uri(), wait_until="commit")
        if selector != "table":
            tab.locator(".plot, article.task").first.scroll_into_view_if_needed()
        tab.wait_for_selector(selector)
        seconds = time.perf_counter() - began
        found = tools.send("Performance.getMetrics")["metrics"]
        return seconds, next(m["value"] for m in found if m["name"] == "TaskDuration"), files


def _rows(
    rng: np.random.Generator, vocabulary: np.ndarray, tasks: int, words: int, step: int
) -> Iterator[dict[str, Any]]:
    for group in range(STREAMS):
        for sibling in range(GROUP):
            memory = ""
            for t in range(tasks):
                before, memory = memory, memory + "- " + _text(rng, vocabulary, 12) + "\n"
                status = _STATUSES[min(int(rng.exponential(0.8)), 3)]
                performance = float(rng.random()) if status == "solved" else 0.0
                yield {
                    "stream": f"train-{step * STREAMS + group}", "info": {}, "task": f"task-{t}",
                    "group": group, "sibling": sibling, "position": t + 1, "segment": 0,
                    "status": status, "turns": 2, "judge_status": None, "reward": performance,
                    "performance": performance, "criteria": rng.integers(0, 3, 4).tolist(),
                    "improvement": float(rng.normal()), "writer_reward": float(rng.normal()),
                    "act_advantage": float(rng.normal()), "act_weight": 1.0,
                    "write_advantage": float(rng.normal()), "write_weight": 1.0,
                    "memory_before": before, "memory_after": memory, "malformed": None,
                    "format_errors": 0, "metrics": {}, "version": step,
                    "transcript": [[s, _text(rng, vocabulary, words)] for s in _SPEAKERS],
                }


def _text(rng: np.random.Generator, vocabulary: np.ndarray, words: int) -> str:
    # Some words are frequent, as in any language.
    return " ".join(vocabulary[(len(vocabulary) * rng.random(words) ** 3).astype(int)])


def _word(rng: np.random.Generator) -> str:
    return "".join(rng.choice(list("etaoinshrdlucmfw"), size=rng.integers(2, 9)))


if __name__ == "__main__":
    main()
