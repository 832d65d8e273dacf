"""Builds what a configuration names: policy, tokens, domain, sampler, judge."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import ml_collections

from rime_jax import config as config_lib
from rime_jax import domains, streams
from rime_jax.judge import base as judge_base
from rime_jax.judge import lexical
from rime_jax.policy import chat as chat_lib
from rime_jax.policy import qwen3, weights
from rime_jax.rollout import loop
from rime_jax.sampler import native


@dataclasses.dataclass(frozen=True)
class Parts:
    """Everything of a run but the learner.

    Attributes:
      initial_params: the initial policy of `model.path`, float32 on the host.
    """

    config: ml_collections.ConfigDict
    policy: qwen3.Qwen3
    initial_params: qwen3.Params
    tokenizer: Any
    chat: chat_lib.ChatTokens
    domain: domains.Domain
    sampler: native.NativeSampler
    judge: judge_base.Judge | None

    def initial_sets(self) -> dict[str, qwen3.Params]:
        """Parameter set name → the initial policy, for every set that a role uses."""
        roles = self.config.roles
        return {name: self.initial_params for name in sorted({roles.act, roles.write})}

    def context(
        self, temperature: float, judge: judge_base.Judge | None = None,
        given_memory: Callable[[streams.Task], str] | None = None,
    ) -> loop.Context:
        """What rollouts share; without a judge nothing is scored (evaluation)."""
        return loop.Context(
            sampler=self.sampler, judge=judge, domain=self.domain, chat=self.chat,
            options=self.config.rollout, judge_timeout_s=self.config.judge.timeout_s,
            temperature=temperature, given_memory=given_memory,
        )


def build(config: ml_collections.ConfigDict) -> Parts:
    """Loads the model and makes the parts.

    Raises:
      ConfigError, ModelError, TemplateError: what does not fit, and the remedy.
    """
    directory = weights.resolve(config.model.path)
    policy = weights.make_policy(directory, config.model.dtype, config.model.remat)
    tokenizer = weights.load_tokenizer(directory)
    chat = chat_lib.ChatTokens(tokenizer)
    domain = domains.make(config)
    _check_words(config, chat)
    sampler = _make_sampler(config, policy, chat)
    judge = lexical.LexicalJudge(domain.memory_format) if config.judge.kind == "lexical" else None
    return Parts(config, policy, weights.load(directory, policy.config), tokenizer, chat, domain,
                 sampler, judge)


def _make_sampler(
    config: ml_collections.ConfigDict, policy: qwen3.Qwen3, chat: chat_lib.ChatTokens
) -> native.NativeSampler:
    try:
        return native.NativeSampler(
            policy,
            {"act": config.roles.act, "write": config.roles.write},
            chat.stop_ids,
            slots=config.sampler.slots,
            context_tokens=config.rollout.context_tokens,
            decode_block=config.sampler.decode_block,
            prefill_chunks=config.sampler.prefill_chunks,
            devices=jax.local_devices(),
        )
    except ValueError as error:
        raise config_lib.ConfigError(str(error)) from error


def _check_words(config: ml_collections.ConfigDict, chat: chat_lib.ChatTokens) -> None:
    """A word-level tokenizer must know every word of the compact form."""
    if config.env.form != "compact":
        return
    from rime_jax.envs.alchemy import text_compact

    text = " ".join(text_compact.WORDS)
    if chat.decode(chat.text(text)).split() != text.split():
        raise config_lib.ConfigError(
            f"model.path = {config.model.path!r} does not know the words of env.form = 'compact'; "
            "set env.form = 'full' for a language model, or make a small policy with "
            "rime_jax.warm_start"
        )
