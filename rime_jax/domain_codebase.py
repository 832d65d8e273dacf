"""Codebase Adaptation as a domain: its tasks, streams, environments and wording."""

import functools
import os
import pathlib
from collections.abc import Callable

import ml_collections
import numpy as np

from rime_jax import prompts_codebase
from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import (
    backends,
    environment,
    loaders,
    published,
    sandbox,
    sources,
    streams,
    trees,
)
from rime_jax.envs.codebase.tasks import CodeTask
from rime_jax.judge.rubric import DomainWords
from rime_jax.rollout.domain import Domain, Split

# Part of the definition of the held-out repositories.
_SPLIT_SEED = 0

_WORDS = DomainWords(
    task="repairs bugs in software repositories, by commands in a shell",
    fact="where a module is, how a repository's tests are run, or why a kind of change failed",
    lead="a file or a behaviour that is still to be looked into",
)


def make(config: ml_collections.ConfigDict) -> Domain:
    """The domain that `config.env` describes.

    Raises:
      ValueError: the options do not go together, or files cannot be used.
      SandboxError: there is no sandbox on this machine.
    """
    env = config.env
    shape = streams.Shape.parse(env.segments, env.order == "curriculum")
    if sum(shape.segments) != env.trials:
        raise ValueError(f"env.segments = {env.segments!r} has {sum(shape.segments)} tasks, but "
                         f"env.trials = {env.trials}; make them equal")
    tasks, libraries = _tasks(env)
    streams.check_trainable(tasks)
    store = trees.TreeStore(cache_directory(env.cache_dir), tasks, libraries)
    box = backends.make(env.sandbox, sandbox.Limits())
    return Domain(
        make_env=lambda: environment.CodebaseEnvironment(box, store, env.max_steps),
        prompts=prompts_codebase.CodebasePrompts(config.rollout.memory_tokens, env.max_steps),
        memory_format=prompts_codebase.CodebaseMemory(),
        make_stream=functools.partial(_make_stream, tasks, shape, env.heldout_fraction),
        judge_words=_WORDS,
        words="",
        memory_truth=None,
        true_memory=None,
        floors={},
    )


def cache_directory(given: str) -> pathlib.Path:
    """`given`, or the user's cache."""
    if given:
        return pathlib.Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser() / "rime_jax" / "codebase"


def held_out(tasks: list[CodeTask], fraction: float) -> frozenset[str]:
    """The repositories that only evaluation sees: at least two, so that they make a stream."""
    names = sorted({task.repository for task in tasks})
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(names))
    return frozenset(names[i] for i in order[: max(2, round(fraction * len(names)))])


def _tasks(env: ml_collections.ConfigDict) -> tuple[list[CodeTask], dict[str, sources.Library]]:
    if bool(env.tasks_file) != bool(env.libraries_file):
        raise ValueError("env.tasks_file and env.libraries_file go together; set both or neither")
    if not env.tasks_file:
        return published.tasks(), published.libraries()
    return (loaders.load_tasks(pathlib.Path(env.tasks_file)),
            loaders.load_libraries(pathlib.Path(env.libraries_file)))


def _make_stream(
    tasks: list[CodeTask], shape: streams.Shape, fraction: float, split: Split
) -> Callable[[int, np.random.Generator], streams_lib.Stream]:
    hidden = held_out(tasks, fraction)
    own = [task for task in tasks if (task.repository in hidden) == (split == "heldout")]
    return streams.make_streams(streams.plan(map(streams.entry, own), shape, _SPLIT_SEED))
