"""Evaluation: what a policy reaches on tasks that it was not trained on, and through its memory.

    python -m rime_jax.evaluate --run=runs/rime_tiny                 a run's newest checkpoint
    python -m rime_jax.evaluate --config=experiments/alchemy/rime.py the initial policy
    python -m rime_jax.evaluate --run=runs/rime_tiny --writer=initial another model writes

`eval.protocol` says how (docs/evaluation.md). Results go to eval/ of the run directory as step_<n>
or initial (.json and .md), or to --out; played/ beside them holds every finished task, from which a
killed evaluation goes on with the same numbers. SIGTERM and Ctrl-C end it with 75, as they do a
training. What --actor and --writer take is listed in
rime_jax/evaluation/players.py.
"""

import argparse
import asyncio
import contextlib
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import ml_collections

from rime_jax import config as config_lib
from rime_jax import distributed, errors, experiment, parts
from rime_jax.evaluation import journal, players, protocols, tables
from rime_jax.rollout.trajectory import Status
from rime_jax.tracking import progress, run_dir

# Characters of a model's name that are kept in that of a file.
_NAME = 100


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--run", type=pathlib.Path, help="a run directory")
    parser.add_argument("--actor", metavar="WHO", help="who acts: initial, a run, "
                        "RUN/checkpoints/STEP, a model directory, or URL#MODEL of a chat service")
    parser.add_argument("--writer", metavar="WHO", help="who writes the memory, if not the actor")
    parser.add_argument("--out", type=pathlib.Path, help="file to write, without its ending")
    experiment.add_arguments(parser, required=False)
    distributed.add_arguments(parser)
    arguments = parser.parse_args(argv)
    with experiment.clean_errors():
        config = _config(parser, arguments)
        with distributed.session(arguments) as processes:
            ended = asyncio.run(_evaluate(config, arguments, processes))
    if ended is None:
        print("Stopped; the tasks that were finished are kept, and the same command goes on.")
        sys.exit(errors.STOPPED)
    found, out = ended
    if processes.first:
        print(tables.save(found, out.parent, out.name))
        print(f"saved {out}.json and .md")


def _config(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> ml_collections.ConfigDict:
    if (arguments.run is None) == (arguments.config is None):
        parser.error("give either --run or --config")
    if arguments.run is not None and not (arguments.run / "config.json").is_file():
        raise config_lib.ConfigError(f"--run {arguments.run} is no run directory (it has no "
                                     "config.json); name one that rime_jax.train made, such as "
                                     "runs/rime_tiny")
    config = experiment.read(
        arguments.config or str(arguments.run / "config.json"), arguments.set)
    if arguments.run is not None and config.sampler.kind == "openai":
        raise config_lib.ConfigError("sampler.kind = 'openai' plays a service's model and not that "
                                     "of a run; give --config instead of --run")
    return config


async def _evaluate(
    config: ml_collections.ConfigDict, arguments: argparse.Namespace,
    processes: distributed.Processes,
) -> tuple[dict[str, Any], pathlib.Path] | None:
    """The results, and the file for them without its ending; None: it was told to stop."""
    distributed.check_same(processes, config)
    stop = distributed.Stop(processes)
    stop.heed_signals()
    try:
        return await _play(config, arguments, processes, stop)
    except distributed.Stopped:
        return None


async def _play(
    config: ml_collections.ConfigDict, arguments: argparse.Namespace,
    processes: distributed.Processes, stop: distributed.Stop,
) -> tuple[dict[str, Any], pathlib.Path]:
    async with players.opened(config, processes, run=arguments.run, actor=arguments.actor,
                              writer=arguments.writer) as made:
        protocols.check(made[0].built)
        out = arguments.out or _place(config, arguments, made[-1])
        if processes.first:
            tables.check_place(out.parent, out.name, config)
            print(tables.announcement(config, [player.name for player in made]), flush=True)
        played = {}
        for player in made:
            await player.load()
            with (journal.opened(out.parent / "played", config, player.identity, processes) as kept,
                  _shown(kept, player.built, processes)):
                for scaffold in config.eval.scaffolds:
                    played[protocols.row_name(player.name, scaffold)] = await protocols.play(
                        player.built, config.eval.rollouts, stop, scaffold=scaffold,
                        writer=player.writer, journal=kept)
        found = protocols.results(played, made[0].built)
        if spent := made[-1].spent():
            found["spent"] = spent
    return found, out


@contextlib.contextmanager
def _shown(
    kept: journal.Journal, built: parts.Parts, processes: distributed.Processes
) -> Iterator[None]:
    """Shows how much of its share the first process has played, and what had no room."""
    total = -(-protocols.tasks(built) // processes.count)
    bar = progress.Progress(total)
    rewards: list[float] = []
    full: list[journal.Row] = []

    def tell(row: journal.Row) -> None:
        rewards.append(row.reward)
        if row.status == Status.CONTEXT_LIMIT.value:
            full.append(row)
        bar.update(min(kept.finished, total), {"reward": sum(rewards) / len(rewards)})

    if processes.first:
        kept.tell(tell)
    try:
        yield
    finally:
        bar.close()
        if full:
            print(f"{len(full)} of {len(rewards)} tasks ended where their conversation was full "
                  f"(rollout.context_tokens = {built.config.rollout.context_tokens}) and count "
                  "with the reward that they had then", file=sys.stderr)


def _place(
    config: ml_collections.ConfigDict, arguments: argparse.Namespace, player: players.Player
) -> pathlib.Path:
    """eval/step_100, and eval/runs_step_100 of the protocol `runs`.

    Other models are put into a directory of their own, so that nobody takes them for the run's. A
    digest tells those of one name apart, such as two runs rime in different directories.
    """
    name = player.name
    directory = (arguments.run or run_dir.path_of(config, arguments.config)) / "eval"
    if arguments.actor is not None or arguments.writer is not None:
        directory /= "others"
        # As names of files are limited, and those of models are not.
        name = f"{name[:_NAME]}-{journal.digest(player.identity)[:8]}"
    protocol = "" if config.eval.protocol == "streams" else f"{config.eval.protocol}_"
    return directory / re.sub(r"[^\w.-]", "_", f"{protocol}{name}")


if __name__ == "__main__":
    main()
