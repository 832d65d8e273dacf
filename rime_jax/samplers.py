"""Makes the sampler that `sampler.kind` names, and the chat tokens that go with it."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.experimental import multihost_utils

from rime_jax import distributed
from rime_jax.config import ConfigError
from rime_jax.policy import base as policy_base
from rime_jax.policy import chat as chat_lib
from rime_jax.policy import weights
from rime_jax.sampler import base, messages, native, openai, vllm

# Tokens of the prompt that a vLLM server is compared by.
_PROBE_TOKENS = 64


Chat = chat_lib.ChatTokens | messages.MessageTokens


def make_chat(
    config: ml_collections.ConfigDict, directory: pathlib.Path, tokenizer: Any
) -> Chat:
    """How conversations become ids: by the model's template, or for a service that takes messages.

    Raises:
      TemplateError: the template cannot be used.
    """
    if config.sampler.kind == "openai":
        return messages.MessageTokens(tokenizer)
    return chat_lib.ChatTokens(tokenizer, config.model.thinking, weights.ends_of_text(directory))


def check_trains(config: ml_collections.ConfigDict) -> None:
    """Raises ConfigError where the sampler is for evaluation only."""
    if config.sampler.kind == "openai":
        raise ConfigError("sampler.kind = 'openai' has no log-probabilities and cannot be given "
                          "weights; use it with rime_jax.evaluate, and native or vllm to train")


def make(
    config: ml_collections.ConfigDict, directory: pathlib.Path, policy: policy_base.Policy,
    tokenizer: Any, chat: Chat, prompt: Sequence[int], processes: distributed.Processes,
) -> base.Sampler:
    """The sampler of a valid configuration.

    Args:
      directory: of the model.
      policy: its pure functions.
      tokenizer: goes into the model directories that servers load.
      chat: from `make_chat`.
      prompt: ids of a prompt of the domain.
      processes: of the run.

    Raises:
      ConfigError: options that do not fit each other.
    """
    if config.sampler.kind == "vllm":
        return _vllm(config, directory, policy, tokenizer, chat.stop_ids, prompt, processes)
    if isinstance(chat, messages.MessageTokens):
        return _openai(config, chat)
    try:
        return native.NativeSampler(
            policy, _role_sets(config), chat.stop_ids,
            slots=config.sampler.slots, context_tokens=config.rollout.context_tokens,
            decode_block=config.sampler.decode_block,
            prefill_chunks=config.sampler.prefill_chunks,
            shared_prefix=config.sampler.shared_prefix, devices=jax.local_devices(),
            tensor=config.sampler.tensor, generation_s=config.sampler.generation_s,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _vllm(
    config: ml_collections.ConfigDict, directory: pathlib.Path, policy: policy_base.Policy,
    tokenizer: Any, stop_ids: Sequence[int], prompt: Sequence[int],
    processes: distributed.Processes,
) -> vllm.VllmSampler:
    if processes.count > 1 and not config.sampler.exchange_dir:
        raise ConfigError("sampler.kind = 'vllm' with several processes needs "
                          "sampler.exchange_dir: a directory that all of them and the servers see")
    role_sets = _role_sets(config)
    # Short prompts do not suit the fused kernels, and the comparison should not depend on one.
    plain = weights.make_policy(directory, config.model.dtype, "none", "xla")
    ids = list(prompt[: min(_PROBE_TOKENS, config.rollout.context_tokens - 1)])
    return vllm.VllmSampler(
        role_sets, stop_ids,
        urls=urls_of(config.sampler.urls, sorted(set(role_sets.values()))),
        context_tokens=config.rollout.context_tokens,
        export=lambda params, to: weights.save(to, policy, params, tokenizer, config.model.dtype),
        probe=vllm.Probe(ids, functools.partial(prompt_logprobs, _program(plain, ids))),
        exchange_dir=config.sampler.exchange_dir, gap_limit=config.sampler.gap_limit,
        request_s=config.sampler.request_s, generation_s=config.sampler.generation_s,
        processes=processes,
    )


def _role_sets(config: ml_collections.ConfigDict) -> dict[str, str]:
    return {"act": config.roles.act, "write": config.roles.write}


def _openai(
    config: ml_collections.ConfigDict, chat: messages.MessageTokens
) -> openai.OpenAISampler:
    (urls,) = urls_of(config.sampler.urls, ["openai"]).values()
    if len(urls) > 1:
        raise ConfigError(f"sampler.urls = {urls}: give the one address of the service")
    return openai.OpenAISampler(
        chat, url=urls[0], model=config.sampler.openai_model,
        context_tokens=config.rollout.context_tokens, requests=config.sampler.openai_requests,
        token_cap=config.sampler.openai_tokens, request_s=config.sampler.request_s,
        generation_s=config.sampler.generation_s,
    )


def urls_of(urls: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Parameter set → the servers of `sampler.urls`, written `URL` or `SET=URL`.

    Raises:
      ConfigError: a set without a server, or a server without a set.
    """
    found: dict[str, list[str]] = {name: [] for name in names}
    for entry in urls:
        name, equals, url = entry.rpartition("=")
        if not equals and len(names) == 1:
            name = names[0]
        if name not in found or not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"sampler.urls holds {entry!r}; write http://HOST:PORT"
                + (f", with one of the parameter sets {list(names)} before it as in "
                   f"{names[0]}=http://HOST:PORT" if len(names) > 1 else ""))
        found[name].append(url)
    for name, own in found.items():
        if not own:
            raise ConfigError(f"sampler.urls has no server for the parameter set {name!r}; add "
                              f"{name}=http://HOST:PORT")
    return found


def prompt_logprobs(program: Any, params: policy_base.Params) -> np.ndarray:
    """Runs a `_program`; with several processes all must call it where `params` are global."""
    found = program(params)
    if not found.is_fully_addressable:
        found = multihost_utils.process_allgather(found, tiled=True)
    return np.asarray(found)


def _program(policy: policy_base.Policy, ids: Sequence[int]) -> Any:
    """Parameters → log-probabilities [T - 1] of ids[1:], each behind those before it."""
    tokens = jnp.array([ids], jnp.int32)
    positions = jnp.arange(len(ids))[None]

    @jax.jit
    def run(params: policy_base.Params) -> jax.Array:
        hidden = policy.forward(params, tokens, positions, jnp.ones_like(tokens))
        every = jax.nn.log_softmax(policy.logits(params, hidden[0, :-1]))
        return jnp.take_along_axis(every, tokens[0, 1:, None], axis=1)[:, 0]

    return run
