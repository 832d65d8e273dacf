"""The tables of the study as Markdown, from its results alone."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from rime_jax.study import plan, statistics
from rime_jax.study.results import WARM_START, Results, Row
from rime_jax.study.statistics import Estimate, Interval, Runs

# A difference of the gain that is called none: all of its interval is nearer to zero.
SMALL = 0.05


def cells(results: Results, setting: plan.Setting) -> str:
    """What each cell reaches."""
    head = ["cell", "runs", "gain", "over chemistries", "over runs", "over both", "performance",
            "memory blanked", "improvement"]
    rows = []
    for name, title, runs in _cells(results, setting):
        gain = statistics.level(runs, "gain")
        rows.append([
            f"**{title}**" if name == "rime" else title, str(gain.runs), _signed(gain.mean),
            _interval(gain.chemistries), _interval(gain.over_runs), _interval(gain.both),
            *(_both(statistics.level(runs, q), _signed if q == "improvement" else _plain)
              for q in ("performance", "stateless", "improvement"))])
    return _table(head, rows)


def memories(results: Results, setting: plan.Setting) -> str:
    """What the memories hold, and what the actor makes of a perfect one."""
    head = ["cell", "correct facts at the end of a stream", "true memory given",
            "wrong facts, begin → end", "items kept", "well-formed", "tokens",
            "exploration score"]
    rows = []
    for _, title, runs in _cells(results, setting):
        rows.append([title, _both(statistics.level(runs, "correct_facts"), _plain),
                     _both(statistics.level(runs, "true_memory"), _plain),
                     *(_moved(runs, tag, digits) for tag, digits in (
                         ("memory/wrong_facts", 2), ("memory/retention_exact", 2),
                         ("memory/well_formed", 2), ("memory/tokens", 1),
                         ("exploration/score", 2)))])
    return _table(head, rows)


def positions(results: Results, setting: plan.Setting) -> str:
    """Performance by the task's position in its stream."""
    rows = [[title, *(_plain(x, 2) for x in np.mean([row.by_position for row in runs.values()], 0))]
            for _, title, runs in _cells(results, setting)]
    return _table(["cell", *map(str, range(1, max(map(len, rows), default=1)))], rows)


def differences(results: Results, setting: plan.Setting) -> str:
    """Each cell less the one that it is compared with, pair by pair."""
    head = ["cell", "less", "pairs", "gain", "over chemistries", "over pairs", "over both",
            "by warm start", "performance", "over pairs"]
    rows = []
    for name, title, runs in _cells(results, setting):
        if name == WARM_START or name == plan.CELLS[name].beside:
            continue
        beside = plan.CELLS[plan.CELLS[name].beside]
        other = results.select(setting.name, beside.name)
        gain, performance = (statistics.difference(runs, other, q)
                             for q in ("gain", "performance"))
        if gain and performance:
            rows.append([
                title, beside.title, str(gain.runs), _signed(gain.mean),
                _interval(gain.chemistries, _signed), _interval(gain.over_runs, _signed),
                _interval(gain.both, _signed), _by_warm_start(gain), _signed(performance.mean),
                _interval(performance.over_runs, _signed)])
    return _table(head, rows)


def orderings(results: Results, setting: plan.Setting) -> str:
    """Which orderings of the post appear."""
    head = ["the post's ordering", "pairs", "gain: difference, other runs", "",
            "performance: difference, other runs", ""]
    rows = []
    for ordering in plan.ORDERINGS:
        more, less = (results.select(setting.name, name) for name in (ordering.more, ordering.less))
        found = [statistics.difference(more, less, q) for q in ("gain", "performance")]
        shown = [cell for one in found if one for cell in (
            _wide(one), verdict(one))]
        if shown and found[0]:
            rows.append([f"{_title(ordering.more)} > {_title(ordering.less)}: {ordering.says}",
                         str(found[0].runs), *shown])
    return _table(head, rows)


def examples(results: Results, setting: plan.Setting) -> str:
    """Memories of one stream, early and late: the first of what seed 0 recorded, not chosen."""
    columns = []
    for name in ("rime", "writer_untrained"):
        row = next(iter(results.select(setting.name, name).values()), None)
        columns += [(f"{_title(name)}, iteration {step}", texts)
                    for step, texts in (row.memories.items() if row else ())]
    rows = [[str(t), *(f"`{text}`" if text else "*(empty)*" for text in texts)]
            for t, texts in enumerate(zip(*(texts for _, texts in columns), strict=True), 1)]
    return _table(["after task", *(title for title, _ in columns)], rows)


def exploration(results: Results, setting: plan.Setting) -> str:
    """What the exploration reward changes, with the writer trained and untrained."""
    rows = []
    for writer, on, off in (("trained", "rime", "exploration_off"),
                            ("untrained", "writer_untrained", "actor_only")):
        more, less = (results.select(setting.name, name) for name in (on, off))
        pairs = [(row, less[key]) for key, row in more.items() if key in less]
        gain = statistics.difference(more, less, "gain")
        if gain:
            rows.append([writer, str(gain.runs), *(
                _over_pairs(np.array([_last(a, tag) - _last(b, tag) for a, b in pairs]))
                for tag in ("exploration/score", "memory/correct_facts")),
                f"{_signed(gain.mean)} {_interval(gain.over_runs, _signed)}".rstrip()])
    return _table(["writer", "pairs", "exploration score", "correct facts in training", "gain"],
                  rows)


def verdict(found: Estimate) -> str:
    """Whether an ordering appears: by the interval that holds both over other runs.

    One pair has none; what is shown then is about other chemistries alone.
    """
    low, high = found.wide
    if math.isnan(low):
        return "one pair; other chemistries"
    if low > 0:
        return "**appears**"
    if high < 0:
        return "**the opposite**"
    if max(-low, high) < SMALL:
        return f"no difference of {_plain(SMALL, 2)}"
    return "cannot be told"


def swaps(results: Results, setting: plan.Setting) -> str:
    """Performance of each cell's actor with each cell's writer."""
    rows = []
    for actor in setting.swaps:
        own = [_swapped(results, setting, actor, writer) for writer in setting.swaps]
        if any(own):
            rows.append([f"actor of {_title(actor)}", *(
                _both(statistics.level(runs, "performance"), _plain) if runs else ""
                for runs in own)])
    return _table(["", *(f"writer of {_title(name)}" for name in setting.swaps)], rows)


def swap_differences(results: Results, setting: plan.Setting) -> str:
    """What another writer changes, pair by pair."""
    rows = []
    for actor in setting.swaps:
        for writer in setting.swaps:
            made = results.select(setting.name, actor, writer)
            found = statistics.difference(
                made, results.select(setting.name, actor), "performance")
            if writer != actor and "rime" in (actor, writer) and found:
                rows.append([_title(actor), _title(writer), str(found.runs), _signed(found.mean),
                             _interval(found.over_runs, _signed), _interval(found.both, _signed)])
    return _table(["actor", "writer instead of its own", "pairs", "performance: difference",
                   "over pairs", "over both"], rows)


def reproduction(results: Results, recorded: Results) -> str:
    """Runs that were made here beside the recorded ones."""
    head = ["setting", "cell", "runs here", "gain here", "recorded, same warm starts and seeds",
            "recorded: all runs", "where a further run falls (95 %)", ""]
    rows = []
    for setting in plan.SETTINGS.values():
        for _, title, runs in _cells(results, setting):
            name = next(iter(runs.values())).cell
            old = recorded.select(setting.name, name)
            if name == WARM_START or not old:
                continue
            means = np.array([np.nanmean(row.of("gain")) for row in old.values()])
            low, high = statistics.another(means)
            here = {key: float(np.nanmean(row.of("gain"))) for key, row in runs.items()}
            same = [np.nanmean(old[key].of("gain")) for key in here if key in old]
            inside = sum(low <= x <= high for x in here.values())
            rows.append([
                setting.name, title, str(len(here)), _signed(float(np.mean(list(here.values())))),
                _signed(float(np.mean(same))) if same else "", _signed(float(means.mean())),
                _interval((low, high), _signed), f"{inside} of {len(here)} there"])
    return _table(head, rows)


def _cells(results: Results, setting: plan.Setting) -> Iterable[tuple[str, str, Runs]]:
    """Name, title, runs of the cells that have any, the warm start first."""
    for name in (WARM_START, *setting.cells):
        runs = results.select(setting.name, name)
        if runs:
            yield name, _title(name), runs


def _title(cell: str) -> str:
    return "warm start" if cell == WARM_START else plan.CELLS[cell].title


def _swapped(results: Results, setting: plan.Setting, actor: str, writer: str) -> Runs:
    return results.select(setting.name, actor, "" if actor == writer else writer)


def _over_pairs(x: np.ndarray) -> str:
    return f"{_signed(float(x.mean()))} {_interval(statistics.student(x), _signed)}".rstrip()


def _last(row: Row, tag: str) -> float:
    """The last mean of a training curve."""
    value = row.training[tag][-1]
    return math.nan if value is None else value


def _moved(runs: Runs, tag: str, digits: int) -> str:
    """First and last mean of a training curve, over runs."""
    curves = [row.training[tag] for row in runs.values() if row.training.get(tag)]
    ends = [[x for x in (curve[i] for curve in curves) if x is not None] for i in (0, -1)]
    if not all(ends):
        return ""
    return " → ".join(_plain(float(np.mean(end)), digits) for end in ends)


def _by_warm_start(found: Estimate) -> str:
    return ", ".join(f"{name} {_signed(mean)}" for name, mean in found.by_warm_start.items())


def _both(found: Estimate, number) -> str:
    """The mean and where it lies for other runs and chemistries; for one run, other chemistries."""
    own = found.chemistries if found.runs == 1 else found.both
    return f"{number(found.mean)} {_interval(own, number)}".rstrip()


def _wide(found: Estimate) -> str:
    """As `_both`, with what holds both intervals that are about other runs."""
    own = found.chemistries if found.runs == 1 else found.wide
    return f"{_signed(found.mean)} {_interval(own, _signed)}"


def _interval(interval: Interval, number=None) -> str:
    if math.isnan(interval[0]):
        return ""
    number = number or _plain
    return f"[{number(interval[0])}, {number(interval[1])}]"


def _plain(x: float, digits: int = 3) -> str:
    """.123 and −.123; nothing for nan."""
    if math.isnan(x):
        return ""
    text = f"{x:.{digits}f}".replace("-", "−")
    if float(f"{x:.{digits}f}") == 0:
        text = text.lstrip("−")
    return text.replace("0.", ".", 1) if text.lstrip("−").startswith("0.") else text


def _signed(x: float) -> str:
    text = _plain(x)
    return text if not text or text.startswith("−") or not x else f"+{text}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
