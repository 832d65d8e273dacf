"""What a configured run needs of this machine: model, directory, disk, servers."""

import asyncio
import contextlib
import math
import os
import shutil
from collections.abc import Iterator

import jax
import ml_collections

from rime_jax import config as config_lib
from rime_jax import domains, errors, judges, samplers
from rime_jax.doctor.findings import Finding
from rime_jax.envs.codebase import trees
from rime_jax.judge import client as judge_client
from rime_jax.policy import weights
from rime_jax.sampler import http, openai
from rime_jax.tracking import run_dir

# Of a checkpoint for each parameter: float32, with the two moments of AdamW.
_BYTES = 12
# Beside checkpoints: metrics, samples, TensorBoard, the final model.
_OTHER_BYTES = 1 << 30

_SERVER_S = 10.0


def model(config: ml_collections.ConfigDict) -> tuple[Finding, int]:
    """The model's directory against the policy that would run it, and its number of parameters."""
    try:
        directory = weights.resolve(config.model.path)
        policy = weights.make_policy(directory, config.model.dtype, "none", "xla")
        if config.sampler.kind != "openai":
            weights.check(directory, policy)
        weights.load_tokenizer(directory)
    except weights.ModelError as error:
        return Finding("run", "model", "bad", str(error), "correct model.path"), 0
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(policy.shapes()))
    return Finding("run", "model", "ok", f"{directory} ({count:,} parameters)"), count


def domain(config: ml_collections.ConfigDict) -> Finding:
    """Whether the environment's files and options are good; its sandbox is looked at apart."""
    if config.env.domain == "codebase":
        place = trees.cache_directory(config.env.cache_dir)
        return Finding("run", "tasks", "ok" if place.is_dir() else "note", f"cache: {place}",
                       "" if place.is_dir() else
                       "it is filled on the way; better before: python -m "
                       "rime_jax.envs.codebase.prepare")
    try:
        domains.make(config)
    except config_lib.ConfigError as error:
        return Finding("run", "tasks", "bad", str(error), "correct env.*")
    return Finding("run", "tasks", "ok", config.env.domain)


def directory(config: ml_collections.ConfigDict, source: str, parameters: int) -> Iterator[Finding]:
    """The run directory: may it be written, by us alone, and does what comes fit on the disk?

    Args:
      source: what --config named.
      parameters: of one parameter set; 0: unknown, and so is what comes.
    """
    place = run_dir.RunDir(run_dir.path_of(config, source))
    there = place.path.resolve()
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        yield Finding("run", "directory", "bad", f"{place.path} cannot be written",
                      "--set run_dir=DIRECTORY")
        return
    if not place.path.exists():
        yield Finding("run", "directory", "ok", f"{place.path} (new)")
    else:
        try:
            with place.lock() if (place.path / "lock").exists() else contextlib.nullcontext():
                steps = sorted(int(p.name) for p in place.checkpoints.glob("[0-9]*")
                               if p.name.isdecimal())
            yield Finding("run", "directory", "ok", f"{place.path} (" + (
                f"goes on after step {steps[-1]})" if steps else "no checkpoint yet)"))
        except errors.TransientError as error:
            yield Finding("run", "directory", "bad", str(error),
                          "look with --set run_dir=DIRECTORY for another one")
    if not parameters:
        return
    sets = {config.roles.act, config.roles.write}
    needed = (config.track.checkpoint_keep + 1) * _BYTES * parameters * len(sets) + _OTHER_BYTES
    free = shutil.disk_usage(there).free
    yield Finding(
        "run", "disk", "ok" if free >= needed else "bad",
        f"{free / 1e9:,.0f} GB free; {config.track.checkpoint_keep + 1} checkpoints and the rest "
        f"need about {needed / 1e9:,.0f} GB",
        "" if free >= needed else "another run_dir, or a lower track.checkpoint_keep")


def servers(config: ml_collections.ConfigDict) -> Iterator[Finding]:
    """The servers that sampler and judge would ask, each by itself."""
    if config.sampler.kind == "vllm":
        names = sorted({config.roles.act, config.roles.write})
        try:
            found = samplers.urls_of(config.sampler.urls, names)
        except config_lib.ConfigError as error:
            yield Finding("servers", "sampler.urls", "bad", str(error))
            return
        for url in dict.fromkeys(url for urls in found.values() for url in urls):
            yield _vllm(url)
    elif config.sampler.kind == "openai":
        key = os.environ.get(openai.API_KEY_VARIABLE)
        yield Finding("servers", openai.API_KEY_VARIABLE, "ok" if key else "note",
                      "is set" if key else "is not set")
    if config.judge.kind == "server":
        key = os.environ.get(judge_client.API_KEY_VARIABLE)
        yield Finding("servers", judge_client.API_KEY_VARIABLE, "ok" if key else "note",
                      "is set" if key else "is not set; servers of one's own need none")
        try:
            judges.check_serves(config)
        except errors.TransientError as error:
            yield Finding("servers", "judge", "bad", str(error))
        else:
            yield Finding("servers", "judge", "ok",
                          f"{config.judge.model} at {', '.join(config.judge.urls)}")


def _vllm(url: str) -> Finding:
    async def ask() -> None:
        async with http.client() as connection:
            await http.call(connection, "GET", f"{url.rstrip('/')}/health", timeout_s=_SERVER_S)

    try:
        asyncio.run(ask())
    except (http.Unavailable, http.Refused) as error:
        return Finding("servers", "sampler", "bad", str(error),
                       "start it (launch/vllm_server.sh), or correct sampler.urls")
    return Finding("servers", "sampler", "ok", f"{url} answers")
