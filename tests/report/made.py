"""Run directories written by hand, as `rime_jax.train` would have left them."""

import gzip
import json
import pathlib
import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

from rime_jax import config as config_lib


def row(group: int, sibling: int, position: int, **fields: Any) -> dict[str, Any]:
    """A task of a dump with every field that `tracking.texts.sample_rows` writes."""
    return {
        "stream": f"train-{group}", "info": {"chemistry": f"c{group}"}, "task": f"t{position}",
        "group": group, "sibling": sibling, "position": position, "segment": 0,
        "status": "solved", "turns": 2, "judge_status": None, "reward": 1.0, "performance": 0.5,
        "criteria": [2, 1, 0, 1], "improvement": 0.25, "writer_reward": 0.25,
        "act_advantage": 1.5, "act_weight": 1.0, "write_advantage": -0.5, "write_weight": 1.0,
        "memory_before": "red: up", "memory_after": "red: up\nblue: down", "malformed": None,
        "format_errors": {"no_action": 1}, "metrics": {"correct_facts": 0.5},
        "transcript": [["environment", "stone and potions"], ["actor", "use red"]], "version": 3,
    } | fields


def noise(characters: int) -> str:
    """A text that does not become smaller when it is packed."""
    return "".join(random.Random(0).choices(string.ascii_letters + string.digits, k=characters))


def write_run(
    path: pathlib.Path, *, options: Mapping[str, Any] | None = None,
    lines: Sequence[Mapping[str, Any]] = (), dumps: Mapping[int, Sequence[Any]] | None = None,
    evaluations: Mapping[str, Any] | None = None,
) -> pathlib.Path:
    """A run directory with the default config but `options` (dotted option → value)."""
    config = json.loads(config_lib.dump(config_lib.default()))
    for name, value in (options or {}).items():
        *groups, last = name.split(".")
        place = config
        for group in groups:
            place = place[group]
        place[last] = value
    for folder in ("samples", "eval"):
        (path / folder).mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step, rows in (dumps or {}).items():
        text = "".join(json.dumps(own) + "\n" for own in rows)
        (path / "samples" / f"step_{step:06d}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    for stem, found in (evaluations or {}).items():
        (path / "eval" / f"{stem}.json").write_text(json.dumps(found))
    return path
