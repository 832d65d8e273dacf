"""The domains: which environments, prompts, memory grammar and streams a configuration means."""

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator

import ml_collections
import numpy as np

from rime_jax import config as config_lib
from rime_jax import memory, prompts, streams
from rime_jax.envs.alchemy import env as alchemy_env
from rime_jax.envs.alchemy import game, text_compact, text_full
from rime_jax.envs.alchemy import scripts as alchemy_scripts
from rime_jax.envs.alchemy import streams as alchemy_streams
from rime_jax.judge.rubric import DomainWords
from rime_jax.rollout.domain import Domain, Split


def make(config: ml_collections.ConfigDict) -> Domain:
    """The domain that `config.env` describes.

    Raises:
      ConfigError: the options do not go together, or the domain is not there yet.
    """
    name = config.env.domain
    return (_MAKERS[name] if name in _MAKERS else _own(name))(config)


def make_evaluated(config: ml_collections.ConfigDict) -> Domain:
    """The domain with the tasks of `eval.tasks_file`, where there is one, in place of its own.

    Raises:
      ConfigError: as `make`.
    """
    if not config.eval.tasks_file:
        return make(config)
    if config.env.domain not in _EVALUATED:
        raise config_lib.ConfigError(
            f"eval.tasks_file means nothing to env.domain = {config.env.domain}; leave it empty")
    return _EVALUATED[config.env.domain](config)


def _own(name: str) -> Callable[[ml_collections.ConfigDict], Domain]:
    """The function that MODULE:FUNCTION names."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise config_lib.ConfigError(
            f"env.domain = {name}: {error}. It names a function from a configuration to a "
            "rollout.domain.Domain; start where its module is, or name that directory in "
            "PYTHONPATH") from error


def _alchemy(config: ml_collections.ConfigDict) -> Domain:
    rules = alchemy_rules(config.env)
    compact = config.env.form == "compact"
    form: alchemy_env.TextForm
    wording: prompts.Prompts
    memory_format: memory.MemoryFormat
    if compact:
        form, wording = text_compact.CompactForm(), prompts.CompactPrompts()
        memory_format = memory.CompactMemory()
    else:
        form = text_full.FullForm()
        wording = prompts.AlchemyPrompts(config.env.trials, config.rollout.memory_tokens)
        headings = tuple(f"## {heading}" for heading in prompts.ALCHEMY_HEADINGS)
        memory_format = memory.HeadedMemory(headings, 1, text_full.COLOURS)
    return Domain(
        make_env=lambda: alchemy_env.AlchemyEnvironment(rules, form),
        prompts=wording,
        memory_format=memory_format,
        make_stream=lambda split: alchemy_stream_maker(config.env, split),
        judge_words=_ALCHEMY_WORDS,
        words=" ".join(text_compact.WORDS) if compact else "",
        memory_truth=alchemy_scripts.compact_truth if compact else None,
        true_memory=alchemy_scripts.compact_true_memory if compact else None,
        false_words=lambda memory: alchemy_scripts.OPPOSITES,
        floors={
            name: functools.partial(alchemy_scripts.floor, player, rules)
            for name, player in alchemy_scripts.FLOORS.items()
        },
    )


def _alchemy_episodes(config: ml_collections.ConfigDict) -> Domain:
    with _config_errors("eval.tasks_file, env.*"):
        make_stream = alchemy_streams.streams_from_file(
            "heldout", episode_path=config.eval.tasks_file, split_path=None,
            trials=config.env.trials, rules=alchemy_rules(config.env))
    return dataclasses.replace(_alchemy(config), make_stream=lambda split: make_stream)


def _codebase_benchmark(config: ml_collections.ConfigDict) -> Domain:
    from rime_jax import domain_codebase

    with _config_errors("eval.tasks_file, eval.libraries_file"):
        return domain_codebase.make_benchmark(config)


def _codebase(config: ml_collections.ConfigDict) -> Domain:
    # Not imported for other domains: it needs Linux.
    from rime_jax import domain_codebase

    with _config_errors():
        return domain_codebase.make(config)


def alchemy_rules(env: ml_collections.ConfigDict) -> game.Rules:
    """The rules of a trial under `config.env`; both text forms offer to end it.

    Raises:
      ConfigError: the options do not go together.
    """
    with _config_errors():
        return game.Rules(
            stones=env.stones,
            potions=env.potions,
            max_steps=env.max_steps,
            end_trial_action=True,
            values=env.value_display,
            supply=env.supply,
            end_when_banked=env.end_when_banked,
            min_oracle=env.min_oracle,
        )


def alchemy_stream_maker(
    env: ml_collections.ConfigDict, split: Split
) -> Callable[[int, np.random.Generator], streams.Stream]:
    """Generated streams, or those of the episode file that `config.env` names.

    Raises:
      ConfigError: the options do not go together, or the file cannot be used.
    """
    rules = alchemy_rules(env)
    with _config_errors():
        if env.episodes_file:
            return alchemy_streams.streams_from_file(
                split, episode_path=env.episodes_file, split_path=env.split_file,
                trials=env.trials, rules=rules,
            )
        return alchemy_streams.make_streams(
            split, edges=env.edges, trials=env.trials, rules=rules,
            heldout_fraction=env.heldout_fraction, split_seed=_SPLIT_SEED,
            curriculum_streams=env.pass_streams if env.order == "curriculum" else 0,
            hold_out=env.hold_out,
        )


@contextlib.contextmanager
def _config_errors(options: str = "env.*") -> Iterator[None]:
    """Environments know no configuration: what they refuse is an error of the options here."""
    try:
        yield
    except (ValueError, OSError, TypeError, LookupError, AttributeError, ArithmeticError,
            RecursionError, RuntimeError) as error:
        raise config_lib.ConfigError(f"options {options}: {error}") from error


_ALCHEMY_WORDS = DomainWords(
    task="plays trials of an alchemy game: potions may change stones, and a stone put into the "
         "cauldron earns its reward",
    fact="what a potion does to a stone, or which stone is worth most",
    lead="a potion whose effect is still to be tested",
)

# Part of the definition of the held-out set: the shipped warm start was trained on its complement.
_SPLIT_SEED = 0

_MAKERS: dict[str, Callable[[ml_collections.ConfigDict], Domain]] = {
    "alchemy": _alchemy,
    "codebase": _codebase,
}
_EVALUATED = {"alchemy": _alchemy_episodes, "codebase": _codebase_benchmark}
