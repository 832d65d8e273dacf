"""Codebase Adaptation as a domain: its tasks, streams, environments and wording."""

import functools
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence

import ml_collections
import numpy as np

from rime_jax import prompts_codebase
from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import (
    backends,
    environment,
    levels,
    protocol,
    published,
    sandbox,
    sources,
    streams,
    trees,
)
from rime_jax.envs.codebase.tasks import CodeTask
from rime_jax.judge.rubric import DomainWords
from rime_jax.rollout.domain import Domain, Split

_log = logging.getLogger(__name__)

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
    tasks, libraries = published.load(env.tasks_file, env.libraries_file)
    streams.check_trainable(tasks)
    published.check_listed(tasks, libraries)
    rates = levels.read(pathlib.Path(env.levels_file)) if env.levels_file else streams.PASS_RATES
    return _domain(
        config, tasks, libraries,
        functools.partial(_make_stream, tasks, shape, env.heldout_fraction, rates))


def make_benchmark(config: ml_collections.ConfigDict) -> Domain:
    """The tasks of `eval.tasks_file`, as one stream in the benchmark's canonical order.

    Raises:
      ValueError, SandboxError: as `make`.
    """
    tasks, libraries = published.load(config.eval.tasks_file, config.eval.libraries_file)
    (stream,) = protocol.orders(tasks, 1, sorted({protocol.short_name(task) for task in tasks}))
    return _domain(config, tasks, libraries, lambda split: lambda i, rng: stream)


def _domain(
    config: ml_collections.ConfigDict, tasks: Sequence[CodeTask],
    libraries: Mapping[str, sources.Library],
    make_stream: Callable[[Split], streams.MakeStream],
) -> Domain:
    env = config.env
    store = trees.TreeStore(trees.cache_directory(env.cache_dir), tasks, libraries)
    box = backends.make(env.sandbox, sandbox.Limits())
    if missing := store.missing():
        _log.warning(
            "%d of %d libraries are not prepared (%s); a task that needs one fetches it first, "
            "which may take longer than rollout.env_timeout_s. Better beforehand: "
            "python -m rime_jax.envs.codebase.prepare (docs/codebase.md)",
            len(missing), len(libraries), ", ".join(missing[:3]))
    return Domain(
        make_env=lambda: environment.CodebaseEnvironment(box, store, env.max_steps),
        prompts=prompts_codebase.CodebasePrompts(config.rollout.memory_tokens, env.max_steps),
        memory_format=prompts_codebase.CodebaseMemory(),
        make_stream=make_stream,
        judge_words=_WORDS,
        words="",
        memory_truth=None,
        true_memory=None,
        false_words=prompts_codebase.false_words,
        floors={},
    )


def held_out(tasks: list[CodeTask], fraction: float) -> frozenset[str]:
    """The repositories that only evaluation sees: at least two, so that they make a stream."""
    names = sorted({task.repository for task in tasks})
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(names))
    return frozenset(names[i] for i in order[: max(2, round(fraction * len(names)))])


def _make_stream(
    tasks: list[CodeTask], shape: streams.Shape, fraction: float, rates: Mapping[str, float],
    split: Split,
) -> Callable[[int, np.random.Generator], streams_lib.Stream]:
    hidden = held_out(tasks, fraction)
    own = [task for task in tasks if (task.repository in hidden) == (split == "heldout")]
    try:
        return streams.make_streams(
            streams.plan(map(streams.entry, own), shape, _SPLIT_SEED, rates))
    except ValueError as error:
        raise ValueError(
            f"no stream for {'evaluation' if split == 'heldout' else 'training'}: {error}; "
            f"evaluation alone sees {', '.join(sorted(hidden))} (env.heldout_fraction, at least "
            "two repositories), training all others: bring tasks of more repositories, or make "
            "env.segments shorter") from error
