"""Figures over the iterations of training: exploration, what is learnt, what can go wrong."""

import collections
import math
import re
from collections.abc import Sequence

from rime_jax.report import evaluations
from rime_jax.report.facts import facts, options
from rime_jax.report.figures.traces import (
    STEP_AXIS,
    Drawn,
    Figure,
    Points,
    line,
    moving_mean,
    panel,
    smoothed,
)
from rime_jax.report.runs import Run

# What the 2 x 2 varies: (exploration rewarded, writer trained).
_ARMS = {
    (True, True): "exploration on, writer trained (RIME)",
    (True, False): "exploration on, writer untrained",
    (False, True): "exploration off, writer trained",
    (False, False): "exploration off, writer untrained",
}
_LEARNING = {
    "held-out performance": "performance",
    "gain over the memory-blanked self": "gain",
    "improvement within the stream": "improvement",
}
# Title → the tag, as a regular expression; a group in it tells the parameter sets of a run apart.
_HEALTH = {
    "memory blanked: held-out performance": "eval/stateless",
    "well-formed memories": "memory/well_formed",
    "retention of items, fuzzy": "memory/retention_fuzzy",
    "tokens of a memory": "memory/tokens",
    "groups without a gradient, reward": "credit/zero_variance_reward",
    "w against the length of the memory": "credit/corr_improvement_memory_tokens",
    "w against the reward before": "credit/corr_improvement_last_performance",
    "malformed after a high reward": "memory/malformed_after_high_reward",
    "KL to the initial policy": r"learner/(\w+)/kl_to_initial",
    "tested before submitting": "env/tested_before_submit",
    "submitted blindly": "env/blind_submit",
    "conversations over the limit": "status/context_limit",
}


def exploration(drawn: Sequence[Drawn]) -> Figure | None:
    """The exploration score over training; of the arms of the 2 x 2 alone where there are two."""
    arms = _two_by_two([d.run for d in drawn])
    compared = len(set(arms.values())) > 1
    traces = []
    for d in drawn:
        points = exploration_curve(d)
        if points and (not compared or d.run.name in arms):
            name = f"{arms[d.run.name]} · {d.run.name}" if compared else d.run.name
            traces += smoothed(name, points, d.style)
    if not traces:
        return None
    return Figure(
        "exploration", "Exploration over training",
        "The judge's score of what a task added to memory, mean over all tasks of an iteration; "
        "thin: as measured, thick: moving mean over a tenth of the run. Rewarded exploration with "
        "an untrained writer can raise the score without any gain.",
        [panel("exploration score", traces, legend=True, xaxis=STEP_AXIS)])


def exploration_curve(drawn: Drawn) -> Points:
    """(step, score) as the run logged it; from its dumps where it did not."""
    return drawn.run.curve("exploration/score") or [
        (step, score) for step, score in drawn.scores.items() if not math.isnan(score)]


def learning(drawn: Sequence[Drawn]) -> Figure | None:
    """Held-out curves of all runs."""
    panels = []
    for title, quantity in _LEARNING.items():
        traces = [line(d.run.name, points, d.style, markers=True)
                  for d in drawn if (points := _held_out(d.run, quantity))]
        if traces:
            panels.append(panel(title, traces, legend=not panels, xaxis=STEP_AXIS))
    return Figure(
        "learning", "What is learnt through memory",
        "Held-out streams during training; the last point is the final evaluation. The "
        "memory-blanked self is the same checkpoint with its memory emptied before each task.",
        panels) if panels else None


def health(drawn: Sequence[Drawn]) -> Figure | None:
    """What the authors saw go wrong, a chart each."""
    panels = []
    for title, pattern in _HEALTH.items():
        traces = [line(name, moving_mean(points), d.style)
                  for d in drawn for name, points in _curves(d.run, pattern)]
        if traces:
            # Left alone, plotly centres a curve of zeros in -1 … 1.
            axis = {} if any(any(trace["y"]) for trace in traces) else {"range": [-0.04, 1]}
            panels.append(panel(title, traces, legend=not panels, yaxis=axis, height=210))
    return Figure(
        "health", "What can go wrong",
        "Moving means over a tenth of the run. Correlations of the improvement w are within "
        "groups: near 0, the writer is paid for the actor's luck; a strongly negative one with "
        "the reward before is regression to the mean.", panels) if panels else None


def _curves(run: Run, pattern: str) -> list[tuple[str, Points]]:
    """(name of the run, with the parameter set where it has several; the curve)."""
    tags = {tag for line in run.lines for tag in line}
    matches = [m for tag in sorted(tags) if (m := re.fullmatch(pattern, tag))]
    found = [(match, run.curve(match[0])) for match in matches]
    return [(f"{run.name} · {match[1]}" if len(matches) > 1 else run.name, points)
            for match, points in found if points]


def _two_by_two(runs: Sequence[Run]) -> dict[str, str]:
    """Run → its arm, for runs that differ in nothing else: of the setting with the most arms."""
    settings = collections.defaultdict(dict)
    for run in runs:
        known, rest = facts(run), options(run)
        writer, weight = rest.pop("reward.writer", None), rest.pop("reward.exploration", None)
        if known["credit"] in ("improvement", "none"):
            settings[repr(sorted(rest.items()))][run.name] = weight, writer == "improvement"
    most = max(settings.values(), key=lambda own: len(set(own.values())), default={})
    weights = collections.Counter(weight for weight, _ in most.values() if weight)
    usual = weights.most_common(1)[0][0] if weights else None
    return {name: _ARMS[weight == usual, trained]
            for name, (weight, trained) in most.items() if weight in (0, usual)}


def _held_out(run: Run, quantity: str) -> Points:
    """(step, value) as measured during training, then the evaluation of the trained policy."""
    points = dict(run.curve(f"eval/{quantity}"))
    for policy in evaluations.policies(run):
        step = re.match(r"step (\d+)", policy.name)
        if step and policy.scaffold == "act_write" and quantity in policy.values:
            points[int(step[1])] = policy.values[quantity].mean
    return sorted(points.items())
