"""Made-up results: what the tests of statistics and tables share."""

import gzip
import itertools
import json

import numpy as np

from rime_jax import experiment
from rime_jax.study import plan, results, steps

CHEMISTRIES = 8
# The gain of each cell.
GAINS = {"rime": 0.4, "writer_untrained": 0.2, "exploration_off": 0.4, "actor_only": 0.15}


def row(setting="eased", warm="w0", cell="rime", seed=0, writer="", gain=None, noise=0.02):
    """A row whose gains are about `gain`."""
    rng = np.random.default_rng([seed, *map(ord, cell + warm + writer)])
    stateless = 0.1 + 0.05 * np.arange(CHEMISTRIES) / CHEMISTRIES
    mean = GAINS.get(cell, 0.3) if gain is None else gain
    values = {"performance": stateless + mean + noise * rng.standard_normal(CHEMISTRIES),
              "stateless": stateless, "improvement": np.full(CHEMISTRIES, mean),
              "true_memory": np.full(CHEMISTRIES, 0.9), "correct_facts": np.full(CHEMISTRIES, 0.5)}
    trained = cell != results.WARM_START and not writer
    return results.Row(
        setting, warm, cell, seed,
        {name: np.round(own, 4).tolist() for name, own in values.items()}, [0.1, 0.5, 0.9], writer,
        training={tag: [0.1, 0.2] for tag in results.TRAINING} if trained else {},
        during={tag: [[0, 0.0], [20, 0.25]] for tag in results.DURING} if trained else {})


def study(cells=tuple(GAINS), seeds=(0, 1, 2), settings=("eased",), **how):
    """Results with a row of every one of these, and of the warm starts and swaps."""
    rows = []
    for name in settings:
        setting = plan.SETTINGS[name]
        for warm in setting.warm_starts:
            rows += [row(name, warm, cell, seed, **how) for cell in cells for seed in seeds]
            rows += [row(name, warm, actor, seed, writer, **how) for seed in seeds
                     for actor in setting.swaps for writer in setting.swaps if actor != writer]
            rows.append(row(name, warm, results.WARM_START, gain=0.02))
    return results.Results(
        {own.key: own for own in rows},
        {name: [f"g{i}" for i in range(CHEMISTRIES)] for name in settings})


def write_run(out, setting="eased", warm="w0", cell="rime", seed=0, **options):
    """A run directory as a training leaves it, as far as the study reads it; returns its row."""
    made = row(setting, warm, cell, seed)
    of = plan.CELLS[cell]
    config = experiment.read(of.source(), [f"{k}={v}" for k, v in options.items()])
    run = steps.directory(out, setting, warm) / f"{of.run}_seed{seed}"
    (run / "eval").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(config.to_dict()))
    values = dict(made.values)
    last = f"step {config.steps}"
    (run / "eval" / "final.json").write_text(json.dumps({
        "policies": {name: {"by_position": made.by_position} for name in ("initial", last)},
        "units": {"clusters": [f"g{i}" for i in range(CHEMISTRIES)],
                  "values": {"initial": values, last: values}}}))
    (run / "samples").mkdir()
    for step in (1, 10, 20):
        dump = [{"group": group, "sibling": sibling, "position": position,
                 "memory_after": f"{step} {group} {sibling} {position}"}
                for group, sibling, position in itertools.product((3, 4), (0, 1), (2, 1))]
        (run / "samples" / f"step_{step:06d}.jsonl.gz").write_bytes(
            gzip.compress("".join(json.dumps(row) + "\n" for row in dump).encode()))
    lines = [{"step": step, **dict.fromkeys(results.TRAINING, 0.1 if step <= 10 else 0.2)}
             for step in range(1, 21)]
    lines += [{"step": step, **dict.fromkeys(results.DURING, 0.5)} for step in (0, 20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made
