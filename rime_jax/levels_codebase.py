"""Measures how hard each strategy of bugs is for a policy, to set the levels of streams.

    python -m rime_jax.levels_codebase --config=experiments/codebase/rime.py --out=levels.json
    python -m rime_jax.levels_codebase --run=RUN --out=levels.json             its newest checkpoint
    python -m rime_jax.levels_codebase --config=… --set sampler.kind=openai …  a service's model

Each task is played --samples times by itself, without any memory. Results are kept task by task in
OUT.tasks.jsonl: the same command goes on where a killed one was. OUT then holds pass rates with
counts; streams go by them with --set env.levels_file=OUT.
"""

import argparse
import asyncio
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import ml_collections

from rime_jax import config as config_lib
from rime_jax import experiment, parts, starting_point
from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import levels, published, streams
from rime_jax.rollout.collect import collect
from rime_jax.rollout.trajectory import Status
from rime_jax.tracking import progress

# Options that change nothing of what is measured, and those that only training knows.
_INDIFFERENT = ("name", "run_dir", "resume", "steps", "env.cache_dir", "env.sandbox",
                "env.levels_file", "env.segments", "env.order", "env.trials", "env.pass_streams")
_OTHER_PARTS = ("learner.", "judge.", "reward.", "eval.", "track.", "warm_start.", "sampler.")
_SAMPLER = ("sampler.kind", "sampler.openai_model")


async def measure(
    built: parts.Parts, entries: Sequence[streams.Entry], journal: levels.Journal, samples: int,
    parallel: int, bar: progress.Progress | None = None,
) -> list[str]:
    """Plays tasks that the journal does not have; ids of those that only failures ended.

    Args:
      built: with a sampler that has parameters.
      entries: the tasks.
      journal: gets each task's result as soon as there is one.
      samples: episodes of a task.
      parallel: tasks at a time.
      bar: shows how many are done.
    """
    at_once = asyncio.Semaphore(parallel)
    context = built.context(built.config.rollout.temperature, given_memory=lambda *_: "")
    lost: list[str] = []

    async def one(number: int, entry: streams.Entry) -> None:
        name = entry.instance_id
        stream = streams_lib.Stream(f"single-{name}", (streams_lib.Task(name, name),), {})
        async with at_once:
            rollouts = await collect(
                context, [stream], samples, (built.config.seed,), [number])
        played = [rollout.tasks[0] for rollout in rollouts if rollout.tasks]
        if played:
            solved = sum(record.status == Status.SOLVED for record in played)
            journal.add(levels.Result(name, entry.strategy, solved, len(played)))
        else:
            lost.append(name)
        if bar is not None:
            solved = sum(result.solved for result in journal.results.values())
            bar.update(len(journal.results) + len(lost), {"solved": solved, "lost": len(lost)})

    # A task's number decides its randomness, whatever was played before.
    await asyncio.gather(*(one(number, entry) for number, entry in enumerate(entries)
                           if entry.instance_id not in journal.results))
    return lost


def setting(config: ml_collections.ConfigDict, policy: str, samples: int) -> dict[str, Any]:
    """What pass rates depend on, as JSON values."""
    found = {name: config_lib.get(config, name) for name, _ in config_lib.options()
             if name not in _INDIFFERENT and not name.startswith(_OTHER_PARTS) or name in _SAMPLER}
    return {"policy": policy, "samples": samples} | {
        name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rime_jax.levels_codebase", description=__doc__.split("\n\n")[0])
    experiment.add_arguments(parser, required=False)
    parser.add_argument("--run", type=pathlib.Path, help="a run directory: its newest checkpoint")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="file of the pass rates")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a task; default 4")
    parser.add_argument("--per-strategy", type=int, default=0,
                        help="tasks of each strategy, drawn by hash; default 0: all")
    parser.add_argument("--parallel", type=int, default=4,
                        help="tasks at a time, of --samples episodes each; default 4")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if (arguments.run is None) == (arguments.config is None):
        parser.error("give either --run or --config")
    if min(arguments.samples, arguments.parallel) < 1 or arguments.per_strategy < 0:
        parser.error("--samples and --parallel must be at least 1, --per-strategy at least 0")
    with experiment.clean_errors():
        config = experiment.read(
            arguments.config or str(arguments.run / "config.json"), arguments.set)
        if config.env.domain != "codebase":
            raise config_lib.ConfigError(
                f"env.domain = {config.env.domain!r}: only the tasks of codebase have strategies")
        try:
            found, lost = asyncio.run(_run(config, arguments))
        except levels.LevelsError as error:
            raise config_lib.ConfigError(str(error)) from error
    print(levels.table(found))
    print(f"saved {arguments.out}; use it with --set env.levels_file={arguments.out}")
    if lost:
        sys.exit(f"{len(lost)} tasks were ended by failures alone (as {lost[0]}); the same command "
                 "plays them again")


async def _run(
    config: ml_collections.ConfigDict, arguments: argparse.Namespace
) -> tuple[dict[str, Any], list[str]]:
    async with parts.opened(config) as built:
        policy, params, version = _policy(built, arguments.run)
        what = setting(config, policy, arguments.samples)
        journal = levels.Journal(
            arguments.out.with_name(arguments.out.name + ".tasks.jsonl"), what)
        tasks, _ = published.load(config.env.tasks_file, config.env.libraries_file)
        entries = levels.chosen(map(streams.entry, tasks), arguments.per_strategy)
        print(f"Playing {len(entries)} tasks {arguments.samples} times, as {policy} …", flush=True)
        await built.sampler.publish(params, version)
        bar = progress.Progress(len(entries))
        try:
            lost = await measure(
                built, entries, journal, arguments.samples, arguments.parallel, bar)
        finally:
            bar.close()
        wanted = {entry.instance_id for entry in entries}
        found = levels.summary(what, [result for name, result in journal.results.items()
                                      if name in wanted])
        levels.write(arguments.out, found)
        return found, lost


def _policy(built: parts.Parts, run: pathlib.Path | None) -> tuple[str, dict[str, Any], int]:
    """A name, the parameter sets and their version."""
    if built.config.sampler.kind == "openai":
        if run is not None:
            raise config_lib.ConfigError("sampler.kind = 'openai' plays a service's model and not "
                                         "that of a run; give --config instead of --run")
        return built.config.sampler.openai_model, {}, 0
    if run is None:
        initial = starting_point.sets(built, starting_point.placement(built))
        return built.config.model.path, initial, 0
    step, params = starting_point.newest(built, run)
    return f"{run} step {step}", params, step


if __name__ == "__main__":
    main()
