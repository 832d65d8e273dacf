"""What a judge server can serve: the lexical judge behind the chat protocol, or a local model."""

import json
import pathlib

from rime_jax.judge import rubric
from rime_jax.judge.base import CRITERIA
from rime_jax.judge.chat_server import Answer, Completion, Question, Refusal
from rime_jax.judge.lexical import LexicalJudge
from rime_jax.memory import MemoryFormat

_VERDICT_TOKENS = 128
_PREFILL_CHUNK = 256
_DECODE_BLOCK = 16


def lexical(fmt: MemoryFormat) -> Answer:
    """Answers the rubric's prompts as the lexical judge does, for tests and small runs.

    Args:
      fmt: the grammar of the memories.
    """
    judge = LexicalJudge(fmt)

    async def answer(question: Question) -> Completion:
        memories = rubric.read_prompt(question.messages[-1]["content"])
        if memories is None:
            raise Refusal("messages: the lexical judge reads only the prompts of this version of "
                          "rime_jax/judge/rubric.py")
        verdict = await judge.score(*memories)
        text = json.dumps(dict(zip(CRITERIA, verdict.criteria, strict=True)))
        return Completion(text, "stop", 0, 0)

    return answer


def model(directory: pathlib.Path, dtype: str, context_tokens: int, slots: int) -> Answer:
    """Answers any chat with a model directory in Hugging Face layout; loads and compiles it.

    Where the chat template can switch thinking off it is off. A reply has at most 128 tokens, some
    three times a verdict's.

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
        decode_block=_DECODE_BLOCK, prefill_chunks=(_PREFILL_CHUNK,),
    )
    sampler.set_params({"judge": weights.load(directory, policy)}, 0)
    sampler.warm_up()

    async def answer(question: Question) -> Completion:
        ids = chat.opening(question.messages)
        if len(ids) >= context_tokens:
            raise Refusal(f"messages: {len(ids)} tokens, and the context has {context_tokens}")
        session = sampler.open("judge", ids, seed=(0,))
        try:
            made = await session.generate(
                question.max_tokens or _VERDICT_TOKENS, question.temperature)
        finally:
            session.close()
        finish = "stop" if made.finish == "stop" else "length"
        return Completion(chat.decode(made.ids), finish, len(ids), len(made.ids))

    return answer

