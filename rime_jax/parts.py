"""Builds what a configuration names: policy, tokens, domain, sampler, judge."""

import contextlib
import dataclasses
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import ml_collections
import numpy as np

from rime_jax import config as config_lib
from rime_jax import distributed, domains, judges, samplers
from rime_jax.judge import base as judge_base
from rime_jax.policy import base as policy_base
from rime_jax.policy import chat as chat_lib
from rime_jax.policy import weights
from rime_jax.rollout import context as context_lib
from rime_jax.rollout import loop
from rime_jax.rollout.domain import Domain
from rime_jax.sampler import base as sampler_base


@dataclasses.dataclass(frozen=True)
class Parts:
    """Everything of a run but the learner.

    Attributes:
      directory: of the initial policy (`model.path`).
    """

    config: ml_collections.ConfigDict
    directory: pathlib.Path
    policy: policy_base.Policy
    tokenizer: Any
    chat: samplers.Chat
    domain: Domain
    sampler: sampler_base.Sampler
    judge: judge_base.Judge | None

    def initial_params(self, shardings: Any = None) -> policy_base.Params:
        """The initial policy in float32, read from its files; placed as `weights.load` says."""
        return weights.load(self.directory, self.policy, shardings)

    def initial_sets(self, shardings: Any = None) -> dict[str, policy_base.Params]:
        """Parameter set name → the initial policy in arrays of its own, for every set in use."""
        roles = self.config.roles
        return {name: self.initial_params(shardings) for name in sorted({roles.act, roles.write})}

    def context(
        self, temperature: float, judge: judge_base.Judge | None = None,
        given_memory: context_lib.GivenMemory | None = None,
        scaffold: context_lib.Scaffold = "act_write", writer: context_lib.Speaker | None = None,
    ) -> loop.Context:
        """What rollouts share; without a judge nothing is scored (evaluation)."""
        return loop.Context(
            sampler=self.sampler, judge=judge, domain=self.domain, chat=self.chat,
            options=self.config.rollout, judge_timeout_s=judges.verdict_limit_s(self.config),
            temperature=temperature, given_memory=given_memory, scaffold=scaffold, writer=writer,
        )


@contextlib.asynccontextmanager
async def opened(
    config: ml_collections.ConfigDict, processes: distributed.Processes = distributed.ALONE,
    run: pathlib.Path | None = None, domain: Domain | None = None,
) -> AsyncIterator[Parts]:
    """What `build` makes; closes the sampler afterwards, whatever happens."""
    built = build(config, processes, run, domain)
    try:
        yield built
    finally:
        await built.sampler.close()


def build(
    config: ml_collections.ConfigDict, processes: distributed.Processes = distributed.ALONE,
    run: pathlib.Path | None = None, domain: Domain | None = None,
) -> Parts:
    """Makes the parts; of the model's weights only the names and shapes are read and checked.

    Args:
      processes: of the run.
      run: its directory, for what the judge keeps.
      domain: instead of the one that `config.env` describes.

    Raises:
      ConfigError, ModelError, TemplateError: what does not fit, and the remedy.

    Its sampler is the caller's to close.
    """
    domain = domain or domains.make(config)
    directory = weights.resolve(config.model.path)
    model = config.model
    policy = weights.make_policy(directory, model.dtype, model.remat, model.attention)
    if config.sampler.kind != "openai":  # which needs the tokenizer alone
        weights.check(directory, policy)
    tokenizer = weights.load_tokenizer(directory)
    chat = samplers.make_chat(config, directory, tokenizer)
    _check_sizes(config, policy, tokenizer)
    messages = _first_messages(domain)
    _check_prompts(config, chat, domain, messages)
    judge = judges.make(config, domain, run)
    sampler = samplers.make(
        config, directory, policy, tokenizer, chat, chat.opening(messages), processes)
    return Parts(config, directory, policy, tokenizer, chat, domain, sampler, judge)


def _check_sizes(
    config: ml_collections.ConfigDict, policy: policy_base.Policy, tokenizer: Any
) -> None:
    """An id without an embedding, or a position without meaning, would go unnoticed."""
    if len(tokenizer) > policy.vocab_size:
        raise weights.ModelError(
            f"model.path = {config.model.path!r}: the tokenizer has {len(tokenizer)} ids, the "
            f"model {policy.vocab_size} embeddings; they do not belong together"
        )
    longest = policy.config.max_position_embeddings
    if config.rollout.context_tokens > longest:
        raise config_lib.ConfigError(
            f"rollout.context_tokens = {config.rollout.context_tokens} is more than the model's "
            f"max_position_embeddings = {longest}; lower the first"
        )


def _first_messages(domain: Domain) -> list[chat_lib.Message]:
    """A real prompt of the domain."""
    try:
        task = domain.make_stream("train")(0, np.random.default_rng(0)).tasks[0]
        with contextlib.closing(domain.make_env()) as env:
            return domain.prompts.act("", env.reset(task))
    # A RuntimeError is a sandbox that does not work here; files that cannot be had are the first.
    except (ValueError, RuntimeError) as error:
        raise config_lib.ConfigError(f"options env.*: {error}") from error


def _check_prompts(
    config: ml_collections.ConfigDict, chat: samplers.Chat, domain: Domain,
    messages: list[chat_lib.Message],
) -> None:
    """The tokenizer must know the words of a real prompt, and a reply must fit behind it."""
    text = " ".join([domain.words, *(message["content"] for message in messages)])
    if chat.decode(chat.text(text)).split() != text.split():
        raise config_lib.ConfigError(
            f"model.path = {config.model.path!r} does not know the words of env.form = "
            f"{config.env.form!r}; the small policy (made with rime_jax.warm_start) needs "
            "'compact', a language model 'full'"
        )
    limits = config.rollout
    needed = len(chat.opening(messages)) + limits.memory_tokens + limits.act_tokens
    if needed > limits.context_tokens:
        raise config_lib.ConfigError(
            f"rollout.context_tokens = {limits.context_tokens} cannot hold a prompt with a full "
            f"memory and one reply, {needed} tokens; raise it (and learner.row_tokens), or lower "
            "rollout.memory_tokens or rollout.act_tokens"
        )
