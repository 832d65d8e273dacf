"""Results as Markdown and JSON files."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from rime_jax import config as config_lib
from rime_jax.tracking import metrics

# Reported quantities → column titles.
COLUMNS = {
    "performance": "performance",
    "stateless": "memory blanked",
    "gain": "gain",
    "improvement": "improvement",
    "true_memory": "true memory given",
    "correct_facts": "correct facts",
}
# Those that are there if eval.interventions asks for them.
OPTIONAL = {
    "swapped": "memory swapped",
    "damage": "damage of a false fact",
    "recovered": "false fact corrected",
}


def table(found: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"{_plain(found['setting'])}; {found['streams']} held-out streams of {found['trials']} "
        "tasks; mean [95 % interval over streams]",
        "",
    ]
    rows = {
        **{f"**{_plain(name)}**": row for name, row in found["policies"].items()},
        **{_plain(name): row for name, row in found["differences"].items()}, **found["floors"],
    }
    if found["floors"]:  # Then performance is measured by it.
        rows["oracle"] = {"performance": (1.0, None, None)}
    columns = COLUMNS | {q: title for q, title in OPTIONAL.items()
                         if any(q in row for row in found["policies"].values())}
    lines += ["| | " + " | ".join(columns.values()) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += ["| " + " | ".join([name, *(_cell(row.get(c)) for c in columns)]) + " |"
              for name, row in rows.items()]
    lines += ["", "By position: " + "; ".join(
        f"{_plain(name)} {' '.join(f'{x:.2f}' for x in row['by_position'])}"
        for name, row in {**found["policies"], **found["floors"]}.items()
    )]
    if lost := [f"{name} {row['lost']}" for name, row in found["policies"].items() if row["lost"]]:
        lines += ["", f"Rollouts that failures ended, left out above: {'; '.join(lost)}. "
                      "rime_jax.evaluate plays them again."]
    for name, row in found["policies"].items():
        if "corruption" in row:
            after = " ".join(f"{x:.2f}" for x in row["corruption"]["corrected_after"])
            lines += ["", f"One fact made false, {_plain(name)}: share that is corrected after "
                          f"1, 2, … tasks: {after}"]
    return "\n".join(lines) + "\n"


def runs_table(found: Mapping[str, Any]) -> str:
    """The results of `evaluation.runs` as Markdown."""
    def pair(cell: Mapping[str, float], form: str) -> str:
        se = cell["se"]
        return form.format(cell["mean"]) + ("" if se is None or np.isnan(se) else f" ± {se:.2f}")

    lines = [
        f"{_plain(found['setting'])}; {len(found['instances'])} tasks in {found['runs']} orders, "
        f"stateless baseline of {found['baseline_samples']} a task; sums over tasks of the mean "
        "over runs ± standard error (of the gain: with that of the baseline, where it has several "
        "samples)",
        "", "| system | scaffold | reward | gain | stateless | same task late - early |",
        "|---|---|---|---|---|---|"]
    for name, row in found["policies"].items():
        lines.append(f"| **{_plain(name)}** | {row['scaffold']} | "
                     f"{pair(row['reward'], '{:.2f}')} | {pair(row['gain'], '{:+.2f}')} | "
                     f"{pair(row['stateless'], '{:.2f}')} | "
                     f"{pair(row['late_minus_early'], '{:+.2f}')} |")
    names = list(found["policies"])
    lines += ["", "Cumulative gain by position: " + "; ".join(
        f"{_plain(name)} " + " ".join(f"{x:+.2f}" for x in found["policies"][name]
                              ["cumulative_gain_by_position"]["mean"]) for name in names)]
    lines += ["", "| task | " + " | ".join(f"{_plain(n)}: reward | gain" for n in names) + " |",
              "|---" * (1 + 2 * len(names)) + "|"]
    for task in found["instances"]:
        cells = [f"{found['policies'][n]['reward_by_task'][task]:.3f} | "
                 f"{found['policies'][n]['gain_by_task'][task]:+.3f}" for n in names]
        lines.append(f"| {_plain(task)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def setting(config: ml_collections.ConfigDict) -> str:
    """Names the variant, so that no number stands without it."""
    env = config.env
    if env.domain == "codebase":
        tasks = f"{env.segments}, {env.order}"
        if config.eval.tasks_file:
            tasks = f"tasks of {pathlib.Path(config.eval.tasks_file).name}"
        return f"Codebase Adaptation, {env.max_steps} turns, {tasks}"
    if env.domain != "alchemy":
        return f"{env.domain}, {env.max_steps} turns"
    benchmark = (
        env.value_display == "shown" and env.stones == 3 and env.potions == 12
        and env.supply == "random" and env.max_steps == 20 and not env.min_oracle
        and not env.end_when_banked
    )
    rule = "the benchmark's rules" if benchmark else (
        f"eased variant: values {env.value_display}, {env.stones} stones, potions {env.supply}, "
        f"{env.max_steps} steps"
    )
    if config.eval.tasks_file or env.episodes_file:
        name = pathlib.Path(config.eval.tasks_file or env.episodes_file).name
        return f"Symbolic Alchemy, {rule}, episodes of {name}"
    unseen = ", none of them in training" if env.hold_out == "graphs" else ""
    return f"Symbolic Alchemy, {rule}, graphs of {'/'.join(map(str, env.edges))} edges{unseen}"


def announcement(config: ml_collections.ConfigDict, policies: Sequence[str]) -> str:
    """What an evaluation is about to do."""
    who = " and ".join(map(_plain, policies))
    if config.eval.protocol == "runs":
        return (f"Evaluating {who} on one stream in {config.eval.runs} orders, and stateless "
                f"{config.eval.baseline_samples} times …")
    return (f"Evaluating {who} on {config.eval.streams} held-out streams × "
            f"{config.eval.rollouts} rollouts, with and without memory …")


def check_place(
    directory: pathlib.Path, name: str, config: ml_collections.ConfigDict
) -> None:
    """Refuses to write over the results of another game.

    Raises:
      ConfigError: names the file, and what is different.
    """
    file = directory / f"{name}.json"
    there = metrics.read_object(file)
    now = {"protocol": config.eval.protocol, "setting": setting(config)}
    if config.eval.protocol == "streams":
        now["trials"] = config.env.trials
    for what, value in now.items():
        if there.get(what, value) != value:
            raise config_lib.ConfigError(
                f"{file} holds the results of another game: {what} is {there[what]!r} there and "
                f"would be {value!r}; give these a place of their own (--out)")


def save(found: Mapping[str, Any], directory: pathlib.Path, name: str) -> str:
    """Writes <name>.json and <name>.md, and returns the text of the latter."""
    directory.mkdir(parents=True, exist_ok=True)
    text = (runs_table if found["protocol"] == "runs" else table)(found)
    body = json.dumps(metrics.jsonable(found), indent=2)
    metrics.write_atomically(directory / f"{name}.json", body.encode())
    metrics.write_atomically(directory / f"{name}.md", text.encode())
    return text


def _plain(text: str) -> str:
    """Text that others chose, in a cell: it ends neither the cell nor the line, and commands no
    terminal."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return shown.replace("\\", "\\\\").replace("|", "\\|")


def _cell(value: Any) -> str:
    if value is None or value[0] is None or np.isnan(value[0]):
        return ""
    mean, low, high = value
    return f"{mean:+.3f}" if low is None else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
