"""Plays one held-out stream and writes everything that was said, for people to read.

    python -m rime_jax.transcript --config=experiments/alchemy/models/smollm.py --out=FILE.md
    python -m rime_jax.transcript --run=runs/rime_tiny --out=FILE.md       a run's newest checkpoint

It is the loop of training: the actor plays with its memory, the writer rewrites it, the judge
compares the two. Rewards are shown, nothing is trained.
"""

import argparse
import asyncio
import json
import pathlib
import re
from collections.abc import Sequence

import ml_collections
import numpy as np

from rime_jax import experiment, parts, starting_point
from rime_jax.evaluation import heldout, tables
from rime_jax.judge.base import CRITERIA
from rime_jax.rollout import collect, trajectory


def markdown(rollout: trajectory.Rollout, built: parts.Parts, command: str) -> str:
    """The rollout as Markdown: the first prompt as the policy reads it, then task by task.

    Args:
      rollout: of one stream.
      built: of the run; decodes the ids of the first prompts.
      command: that makes the file.
    """
    scores = [record.performance for record in rollout.tasks]
    lines = [
        f"# Transcript of {built.config.name}", f"Made by `{command}`.",
        f"{tables.setting(built.config)}; stream {rollout.stream.id}, "
        f"`{json.dumps(dict(rollout.stream.info))}`.",
        "Performance (score / oracle) by trial: " + ", ".join(map(_number, scores)) + ".",
    ]
    if rollout.failure is not None:
        lines.append(f"The stream was lost after these tasks: {rollout.failure.value}.")
    for t, record in enumerate(rollout.tasks, start=1):
        lines += [f"## Task {t}", *_task(record, built, whole=t == 1)]
    return "\n\n".join(lines) + "\n"


def _task(record: trajectory.TaskRecord, built: parts.Parts, whole: bool) -> list[str]:
    """What happened in one task; `whole` adds its two prompts token for token."""
    lines = [
        f"{record.status.value}; score {record.reward:g}, performance "
        f"{_number(record.performance)}; {record.turns} replies, format errors "
        f"{record.format_errors or 'none'}."
    ]
    if whole:
        lines += ["The actor's prompt, markup included:", _quote(_prompt(record.act, built))]
    for speaker, text in record.transcript:
        lines += [f"**{speaker}**", _quote(text)]
    if whole:
        lines += ["The writer's prompt, behind the actor's conversation where it goes on in that:",
                  _quote(_prompt(record.write, built, behind=record.act))]
    lines.append(f"Written memory: {record.written.malformed or 'well-formed'}, "
                 f"{len(record.written.items)} items.")
    if record.verdict is not None:
        pairs = zip(CRITERIA, record.verdict.criteria, strict=True)
        criteria = ", ".join(f"{name} {n}" for name, n in pairs)
        lines.append(f"Exploration {record.verdict.score:.3f} ({criteria}).")
    return lines


def _prompt(
    sample: trajectory.Sample, built: parts.Parts, behind: trajectory.Sample | None = None
) -> str:
    """The ids before the first sampled one; without those of `behind` if they begin with them."""
    end = int(np.argmax(sample.mask)) if sample.mask.any() else len(sample.ids)
    ids = sample.ids[:end].tolist()
    if behind is not None and ids[:len(behind.ids)] == behind.ids.tolist():
        ids = ids[len(behind.ids):]
    return built.tokenizer.decode(ids)


def _quote(text: str) -> str:
    """A fenced block that the text cannot close."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _number(value: float | None) -> str:
    return "no scale" if value is None else f"{value:.2f}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--run", type=pathlib.Path, help="a run directory")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the Markdown file")
    experiment.add_arguments(parser, required=False)
    arguments = parser.parse_args(argv)
    with experiment.clean_errors():
        if (arguments.run is None) == (arguments.config is None):
            parser.error("give either --run or --config")
        source = arguments.config or str(arguments.run / "config.json")
        config = experiment.read(source, arguments.set)
        built, rollout = asyncio.run(_play(config, arguments.run))
    which = f"--run={arguments.run}" if arguments.run else f"--config={arguments.config}"
    changed = "".join(f" --set {a}" for a in arguments.set)
    command = f"python -m rime_jax.transcript {which}{changed} --out={arguments.out}"
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(markdown(rollout, built, command))
    print(f"saved {arguments.out}")


async def _play(
    config: ml_collections.ConfigDict, run: pathlib.Path | None
) -> tuple[parts.Parts, trajectory.Rollout]:
    async with parts.opened(config) as built:
        if run is None:
            version, params = 0, starting_point.sets(built, starting_point.placement(built))
        else:
            version, params = starting_point.newest(built, run)
        await built.sampler.publish(params, version)
        context = built.context(config.eval.temperature, judge=built.judge)
        stream = heldout.held_out_streams(built)[0]
        (rollout,) = await collect.collect(context, [stream], 1, (config.eval.seed,))
        return built, rollout


if __name__ == "__main__":
    main()
