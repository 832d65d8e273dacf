"""Evaluation on held-out streams: what is gained through memory, with intervals.

    python -m rime_jax.evaluate --run=runs/rime_tiny                 a run's newest checkpoint
    python -m rime_jax.evaluate --config=experiments/alchemy/rime.py the initial policy

Results go to eval/ of the run directory as step_<n> or initial (.json and .md), or to --out.

Each policy plays the same streams with its memory, stateless (memory blanked before each task) and,
where the domain can write it, with a true memory given to each task. Floors play them too; the
oracle scores 1 by definition. Intervals are 95 % bootstrap over streams, so that the rollouts of
one stream count as one observation; differences are paired.
"""

import argparse
import asyncio
import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from rime_jax import config as config_lib
from rime_jax import distributed, experiment, parts, streams
from rime_jax.evaluation import numbers
from rime_jax.rollout.collect import collect
from rime_jax.rollout.trajectory import Rollout
from rime_jax.tracking import metrics, run_dir

# Reported quantities → column titles.
COLUMNS = {
    "performance": "performance",
    "stateless": "memory blanked",
    "gain": "gain",
    "improvement": "improvement",
    "true_memory": "true memory given",
    "correct_facts": "correct facts",
}


@dataclasses.dataclass(frozen=True)
class Played:
    """Performance of one policy, nan where a task has no scale or was lost to a failure.

    Attributes:
      with_memory, stateless, true_memory: [S streams, R rollouts, T positions].
      facts: [S, R] share of correct facts in the last memory; nan where the domain has none.
      lost: rollouts that an infrastructure failure ended.
    """

    with_memory: np.ndarray
    stateless: np.ndarray
    true_memory: np.ndarray
    facts: np.ndarray
    lost: int


async def play(
    built: parts.Parts, params: Mapping[str, Any], version: int, rollouts: int,
    stop: distributed.Stop | None = None,
) -> Played:
    """Plays the held-out streams with the given parameter sets, each process its share of them.

    Args:
      rollouts: of each stream.
      stop: of the processes, all of which get the whole result; None: this one is alone.

    Raises:
      Stopped: it was told to stop.
    """
    stop = stop or distributed.Stop(distributed.ALONE)
    await built.sampler.publish(params, version)
    shares = stop.processes.gather(
        await stop.run(_play_own(built, rollouts, stop.processes.own(built.config.eval.streams))))

    def whole(name: str) -> np.ndarray:
        array = getattr(shares[0], name)
        for i, share in enumerate(shares):
            array[i :: len(shares)] = getattr(share, name)[i :: len(shares)]
        return array

    return Played(whole("with_memory"), whole("stateless"), whole("true_memory"), whole("facts"),
                  sum(share.lost for share in shares))


async def _play_own(built: parts.Parts, rollouts: int, own: Sequence[int]) -> Played:
    """The streams of one process; nan for the others."""
    config = built.config
    streams_of_all = held_out_streams(built)
    shape = (len(streams_of_all), rollouts, config.env.trials)
    conditions = {
        "with_memory": None, "stateless": lambda task, place: "",
        "true_memory": (true := built.domain.true_memory) and (lambda task, place: true(task)),
    }
    arrays, lost = {}, 0
    for label, (name, given) in enumerate(conditions.items()):
        if name == "true_memory" and given is None:
            arrays[name] = np.full_like(arrays["stateless"], np.nan)
            continue
        context = built.context(config.eval.temperature, given_memory=given)
        played = await collect(
            context, [streams_of_all[i] for i in own], rollouts, (config.eval.seed, label), own)
        arrays[name] = _performance(played, shape)
        lost += sum(r.failure is not None for r in played)
        if name == "with_memory":
            facts = _facts(built, played, shape[:2])
    return Played(**arrays, facts=facts, lost=lost)


def held_out_streams(built: parts.Parts) -> list[streams.Stream]:
    """The evaluation's streams, the same for every policy and run with this config.

    Raises:
      ConfigError: there are not so many different ones.
    """
    config = built.config
    source = streams.StreamSource(built.domain.make_stream("heldout"), config.eval.seed)
    taken = source.take(config.eval.streams)
    distinct = len({stream.info.get("chemistry", stream.id) for stream in taken})
    if distinct < len(taken):
        # Streams of one chemistry are no independent observations; the intervals count on that.
        raise config_lib.ConfigError(
            f"eval.streams = {len(taken)}, but only {distinct} of them are of different held-out "
            f"chemistries (codebase: tasks); lower it to {distinct} at most and raise "
            "eval.rollouts instead"
        )
    return taken


def floors(built: parts.Parts) -> dict[str, np.ndarray]:
    """Name → performance [S, 1, T] of the domain's scripted players."""
    seed = built.config.eval.seed
    held_out = held_out_streams(built)
    return {
        name: np.array([player(stream, seed + i) for i, stream in enumerate(held_out)])[:, None]
        for name, player in built.domain.floors.items()
    }


def statistics(played: Played) -> dict[str, np.ndarray]:
    """Per-stream values [S] of each reported quantity."""
    half = played.with_memory.shape[2] // 2
    performance = _per_stream(played.with_memory)
    stateless = _per_stream(played.stateless)
    return {
        "performance": performance,
        "stateless": stateless,
        "gain": performance - stateless,
        "improvement": _per_stream(played.with_memory[:, :, half:])
        - _per_stream(played.with_memory[:, :, :half]),
        "true_memory": _per_stream(played.true_memory),
        "correct_facts": np.array([np.nanmean(x) if (~np.isnan(x)).any() else np.nan
                                   for x in played.facts]),
    }


def interval(per_stream: np.ndarray, resamples: int, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): 95 % percentile bootstrap over streams; nan streams are left out."""
    values = per_stream[~np.isnan(per_stream)]
    if not values.size:
        return np.nan, np.nan, np.nan
    rng = np.random.default_rng(seed)
    means = values[rng.integers(len(values), size=(resamples, len(values)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def results(
    policies: Mapping[str, Played], floor: Mapping[str, np.ndarray],
    config: ml_collections.ConfigDict,
) -> dict[str, Any]:
    """JSON of an evaluation: rows, floors, and differences to the first policy.

    Each quantity is [mean, low, high]; `by_position` holds means with memory.
    """
    resamples = config.eval.bootstrap
    values = {name: statistics(played) for name, played in policies.items()}
    first, *others = values
    found: dict[str, Any] = {
        "setting": setting(config),
        "streams": config.eval.streams,
        "trials": config.env.trials,
        "policies": {
            name: {
                "rollouts": played.with_memory.shape[1],
                "lost": played.lost,
                "by_position": _by_position(played.with_memory),
                "cumulative_gain": numbers.cumulative_gain(
                    played.with_memory, played.stateless),
                **{q: interval(v, resamples) for q, v in values[name].items()},
            }
            for name, played in policies.items()
        },
        "floors": {
            name: {
                "performance": interval(_per_stream(array), resamples),
                "improvement": interval(_halves(array), resamples),
                "by_position": _by_position(array),
            }
            for name, array in floor.items()
        },
        "oracle": {"performance": 1.0},
        "differences": {
            f"{name} - {first}": {
                q: interval(values[name][q] - values[first][q], resamples)
                for q in values[name]
            }
            for name in others
        },
    }
    return found


def table(found: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"{found['setting']}; {found['streams']} held-out chemistries, {found['trials']} trials; "
        "mean [95 % interval over chemistries]",
        "",
        "| | " + " | ".join(COLUMNS.values()) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, row in found["policies"].items():
        lines.append(_row(f"**{name}**", row))
    for name, row in found["differences"].items():
        lines.append(_row(name, row))
    for name, row in found["floors"].items():
        lines.append(_row(name, row))
    lines.append(_row("oracle", {"performance": (1.0, None, None)}))
    lines += ["", "By position: " + "; ".join(
        f"{name} {' '.join(f'{x:.2f}' for x in row['by_position'])}"
        for name, row in {**found["policies"], **found["floors"]}.items()
    )]
    return "\n".join(lines) + "\n"


def setting(config: ml_collections.ConfigDict) -> str:
    """Names the variant, so that no number stands without it."""
    env = config.env
    benchmark = (
        env.value_display == "shown" and env.stones == 3 and env.potions == 12
        and env.supply == "random" and env.max_steps == 20 and not env.min_oracle
        and not env.end_when_banked
    )
    rule = "the benchmark's rules" if benchmark else (
        f"eased variant: values {env.value_display}, {env.stones} stones, potions {env.supply}, "
        f"{env.max_steps} steps"
    )
    return f"Symbolic Alchemy, {rule}, graphs of {'/'.join(map(str, env.edges))} edges"


def announcement(config: ml_collections.ConfigDict, policies: int) -> str:
    """What an evaluation is about to do: it is silent while it works."""
    who = "the initial policy" if policies == 1 else f"{policies} policies"
    return (f"Evaluating {who} on {config.eval.streams} held-out streams × "
            f"{config.eval.rollouts} rollouts, with and without memory …")


def save(found: Mapping[str, Any], directory: pathlib.Path, name: str) -> None:
    """Writes <name>.json and <name>.md."""
    directory.mkdir(parents=True, exist_ok=True)
    body = json.dumps(metrics.jsonable(found), indent=2)
    metrics.write_atomically(directory / f"{name}.json", body.encode())
    metrics.write_atomically(directory / f"{name}.md", table(found).encode())


def _performance(played: Sequence[Rollout], shape: tuple[int, int, int]) -> np.ndarray:
    array = np.full(shape, np.nan)
    for rollout in played:
        for t, record in enumerate(rollout.tasks):
            if record.performance is not None:
                array[rollout.group, rollout.sibling, t] = record.performance
    return array


def _facts(built: parts.Parts, played: Sequence[Rollout], shape: tuple[int, int]) -> np.ndarray:
    array = np.full(shape, np.nan)
    if built.domain.memory_truth is not None:
        for rollout in played:
            if rollout.tasks:
                last = rollout.tasks[-1]
                items, _ = built.domain.memory_format.parse_items(last.memory_after)
                known = built.domain.memory_truth(last.task, items)
                array[rollout.group, rollout.sibling] = known["correct_facts"]
    return array


def _per_stream(array: np.ndarray) -> np.ndarray:
    """[S, R, T] → [S]: mean over tasks, then over the rollouts that have any."""
    return np.array([
        np.mean(means) if (means := [np.nanmean(r) for r in stream if (~np.isnan(r)).any()])
        else np.nan
        for stream in array
    ])


def _halves(array: np.ndarray) -> np.ndarray:
    half = array.shape[2] // 2
    return _per_stream(array[:, :, half:]) - _per_stream(array[:, :, :half])


def _by_position(array: np.ndarray) -> list[float]:
    return [float(np.nanmean(array[:, :, t])) for t in range(array.shape[2])
            if (~np.isnan(array[:, :, t])).any()]


def _row(name: str, cells: Mapping[str, Any]) -> str:
    return "| " + " | ".join([name, *(_cell(cells.get(c)) for c in COLUMNS)]) + " |"


def _cell(value: Any) -> str:
    if value is None or value[0] is None or np.isnan(value[0]):
        return ""
    mean, low, high = value
    return f"{mean:+.3f}" if low is None else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--run", type=pathlib.Path, help="a run directory")
    parser.add_argument("--out", type=pathlib.Path, help="file to write, without its ending")
    experiment.add_arguments(parser, required=False)
    distributed.add_arguments(parser)
    arguments = parser.parse_args(argv)
    with experiment.clean_errors():
        if (arguments.run is None) == (arguments.config is None):
            parser.error("give either --run or --config")
        if arguments.run is not None and not (arguments.run / "config.json").is_file():
            raise config_lib.ConfigError(f"--run {arguments.run} is no run directory (it has no "
                                         "config.json)")
        config = experiment.read(
            arguments.config or str(arguments.run / "config.json"), arguments.set
        )
        with distributed.session(arguments) as processes:
            found = asyncio.run(_evaluate(config, arguments.run, processes))
    if not processes.first:
        return
    directory = arguments.run or run_dir.path_of(config, arguments.config)
    policy = re.sub(r"[^\w.-]", "_", list(found["policies"])[-1])
    out = arguments.out or directory / "eval" / policy
    save(found, out.parent, out.name)
    print(table(found))
    print(f"saved {out}.json and .md")


async def _evaluate(
    config: ml_collections.ConfigDict, run: pathlib.Path | None,
    processes: distributed.Processes,
) -> dict[str, Any]:
    distributed.check_same(processes, config)
    built, stop = parts.build(config, processes), distributed.Stop(processes)
    rollouts, service = config.eval.rollouts, config.sampler.kind == "openai"
    if service and run is not None:
        raise config_lib.ConfigError("sampler.kind = 'openai' plays a service's model and not that "
                                     "of a run; give --config instead of --run")
    if processes.first:
        print(announcement(config, 1 if run is None else 2), flush=True)
    if service:
        policies = {config.sampler.openai_model: await play(built, {}, 0, rollouts, stop)}
    else:
        policies = {"initial": await play(built, built.initial_sets(), 0, rollouts, stop)}
    if run is not None:
        from rime_jax import train

        step, params = train.restore_params(built, run)
        policies[f"step {step}"] = await play(built, params, step, rollouts, stop)
    found = results(policies, floors(built), config)
    if service:
        found["spent"] = built.sampler.metrics()
    return found


if __name__ == "__main__":
    main()
