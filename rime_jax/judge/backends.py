"""What a judge server can serve: the lexical judge behind the chat protocol, or a local model."""

import contextlib
import json
import pathlib
from typing import Any

from rime_jax.judge import forms, rubric
from rime_jax.judge.base import CRITERIA
from rime_jax.judge.chat_server import Answer, Completion, Question, Refusal
from rime_jax.judge.lexical import LexicalJudge
from rime_jax.memory import MemoryFormat

_VERDICT_TOKENS = 128
# The small one is for what stands between two choices of a form.
_PREFILL_CHUNKS = (16, 256)
_DECODE_BLOCK = 16


def lexical(fmt: MemoryFormat) -> Answer:
    """Answers the rubric's prompts as the lexical judge does, for tests and small runs.

    Args:
      fmt: the grammar of the memories.
    """
    judge, form = LexicalJudge(fmt), forms.read(rubric.RESPONSE_FORMAT)

    async def answer(question: Question) -> Completion:
        memories = rubric.read_prompt(question.messages[-1]["content"])
        if memories is None:
            raise Refusal("messages: the lexical judge reads only the prompts of this version of "
                          "rime_jax/judge/rubric.py")
        if question.form not in (None, form):
            raise Refusal("response_format: the lexical judge gives verdicts alone")
        verdict = await judge.score(*memories)
        text = json.dumps(dict(zip(CRITERIA, verdict.criteria, strict=True)))
        return Completion(text, "stop", 0, 0)

    return answer


def model(directory: pathlib.Path, dtype: str, context_tokens: int, slots: int) -> Answer:
    """Answers any chat with a model directory in Hugging Face layout; loads and compiles it.

    Where the chat template can switch thinking off it is off. A reply in no form has at most 128
    tokens, some three times a verdict's. A form is filled by choice (judge/forms.py).

    Args:
      directory: of the model.
      dtype: of activations.
      context_tokens: of one question and its reply.
      slots: questions that are worked on together; a multiple of the local devices.

    Raises:
      ModelError, TemplateError: the directory cannot be used.
      ValueError: the slots cannot be spread over the devices.
    """
    # Nothing else in judge/ needs jax.
    from rime_jax.policy import weights
    from rime_jax.policy.chat import ChatTokens
    from rime_jax.sampler.native import NativeSampler

    policy = weights.make_policy(directory, dtype, "none")
    weights.check(directory, policy)
    chat = ChatTokens(
        weights.load_tokenizer(directory), "off", weights.ends_of_text(directory))
    sampler = NativeSampler(
        policy, {"judge": "judge"}, chat.stop_ids, slots=slots, context_tokens=context_tokens,
        decode_block=_DECODE_BLOCK, prefill_chunks=_PREFILL_CHUNKS, choices=forms.MOST_CHOICES,
    )
    sampler.set_params({"judge": weights.load(directory, policy)}, 0)
    sampler.warm_up()

    async def answer(question: Question) -> Completion:
        ids = chat.opening(question.messages)
        if len(ids) >= context_tokens:
            raise Refusal(f"messages: {len(ids)} tokens, and the context has {context_tokens}")
        filling = _filling(question, chat, context_tokens - len(ids))
        session = sampler.open("judge", ids, seed=(0,))
        with contextlib.closing(session):
            if filling is not None:
                text = await filling.fill(session, question.temperature)
                return Completion(text, "stop", len(ids), len(session.ids) - len(ids))
            made = await session.generate(
                question.max_tokens or _VERDICT_TOKENS, question.temperature)
        return Completion(chat.decode(made.ids), "stop" if made.finish == "stop" else "length",
                          len(ids), len(made.ids))

    return answer


def _filling(question: Question, chat: Any, room: int) -> forms.Filling | None:
    """The question's form in the model's tokens; None: it has none. Raises Refusal where a reply
    would not fit into `room` tokens, or into those that may be made."""
    if question.form is None:
        return None
    try:
        filling = forms.Filling(question.form, chat.text)
    except ValueError as error:
        raise Refusal(f"response_format: {error}") from error
    if filling.tokens > room:
        raise Refusal(f"messages: the reply may take {filling.tokens} tokens, and {room} are left "
                      "of the context")
    if question.max_tokens is not None and filling.tokens > question.max_tokens:
        raise Refusal(f"max_tokens: the reply may take {filling.tokens} tokens, more than "
                      f"{question.max_tokens}")
    return filling
