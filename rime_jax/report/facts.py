"""What a run is, in the words by which published.json tells the rows of the study apart."""

import functools
import importlib.resources
import json
import re
from collections.abc import Mapping
from typing import Any

from rime_jax.report.runs import Run
from rime_jax.tracking.values import is_number

# Options in which runs of one experiment may differ.
_INCIDENTAL = re.compile(r"name|seed|run_dir|resume|track\..*|judge\.(urls|cache_dir|concurrency)")


@functools.cache
def published() -> dict[str, Any]:
    """published.json: the numbers of the study, and what a run must be to belong to a row."""
    text = importlib.resources.files("rime_jax.report").joinpath("published.json").read_text()
    return json.loads(text)


def options(run: Run) -> dict[str, Any]:
    """The options that make an experiment: runs that agree in them differ by chance alone."""
    return {name: value for name, value in run.config.items() if not _INCIDENTAL.fullmatch(name)}


def facts(run: Run) -> dict[str, Any]:
    """What the rows of published.json ask for in `when`.

    credit: what pays the writer; exploration: whether it is rewarded, and lambda its weight;
    horizon: K of the improvement; parameters: shared, decoupled, frozen writer or frozen actor;
    stream: single, 3+3 or several; order: of the tasks in a segment; branched: whether it starts
    from another run's checkpoint. None where the run has no such option.
    """
    config = run.config
    weight = config.get("reward.exploration")
    baseline = config.get("reward.credit", "rime")
    return {
        "credit": config.get("reward.writer") if baseline == "rime" else baseline,
        "exploration": is_number(weight) and weight > 0,
        "lambda": weight,
        "horizon": config.get("reward.horizon"),
        "parameters": _parameters(config),
        "stream": _stream(config),
        "order": config.get("env.order"),
        "branched": bool(config.get("model.branch_from")),
    }


def domain(run: Run) -> str:
    """Runs from before there was a choice are of Alchemy."""
    return str(run.config.get("env.domain", "alchemy"))


def _parameters(config: Mapping[str, Any]) -> str:
    act, write = config.get("roles.act"), config.get("roles.write")
    trained = config.get("roles.train", [act])
    if act == write:
        return "shared"
    if write not in trained:
        return "frozen writer"
    return "decoupled" if act in trained else "frozen actor"


def _stream(config: Mapping[str, Any]) -> str:
    if config.get("env.trials") == 1:
        return "single"
    return "3+3" if config.get("env.segments") == "3+3" and (
        config.get("env.domain") == "codebase") else "several"
