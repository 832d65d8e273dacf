"""Parts without a model, and a game whose rewards can be worked out by hand.

In the counting game the actor answers with a number, which is its reward. `counting` is a policy
that answers with what its memory (or the conversation) says of its own stream.
"""

import dataclasses
import functools
import pathlib
import re
import types

from rime_jax import domains, memory, parts, prompts, streams
from rime_jax.envs import base as env_base
from rime_jax.policy import characters
from rime_jax.policy import chat as chat_lib
from tests import scripted

TASKS = 4


class CountingEnvironment:
    """One turn; the reward is the number in the reply."""

    inline = True

    def reset(self, task):
        return f"stream {task.payload[0]} task {task.payload[1]}"

    def step(self, reply):
        self.said = float(reply)
        return env_base.Turn("noted", True)

    def outcome(self):
        return env_base.Outcome(
            reward=self.said, performance=self.said, solved=self.said > 0, out_of_turns=False,
            message="over", metrics={})

    def close(self):
        pass


def counting_stream(i, rng):
    return streams.Stream(f"s{i}", tuple(
        streams.Task(f"s{i}t{t}", (i, t), segment=t // 2) for t in range(TASKS)))


def fact(stream, task, word="good"):
    return f"- s{stream}t{task} door: it is {word}"


@functools.cache
def byte_chat():
    return chat_lib.ChatTokens(characters.byte_tokenizer())


class Reader(scripted.ScriptedSampler):
    """A scripted sampler whose script, `reply(session)`, sees the session.

    A session has its `label`, that of the randomness of its condition, and `text`, what it opened
    with.
    """

    def __init__(self, reply, context_tokens=8000, chat=None):
        super().__init__(None, context_tokens, chat or byte_chat())
        self.reply = reply

    def open(self, role, ids, seed, parent=None):
        session = super().open(role, ids, seed, parent)
        session.label, session.seed = seed[-6], tuple(seed)
        session.text = self.chat.decode(session.opening)
        session._sampler = types.SimpleNamespace(
            version=self.version, chat=self.chat, context_tokens=self.context_tokens,
            _script=lambda call: self.reply(session))
        return session


def own_stream(session):
    return int(re.findall(r"stream (\d+) task", session.text)[-1])


def counting(session):
    """A tenth for each good fact of the own stream, less one for each bad one; the writer adds a
    fact on the task that was played. On a bad one the writer of stream 0 is right again at once,
    that of stream 1 believes it, that of stream 2 drops it."""
    stream, lines = own_stream(session), re.findall(r"- s\d+t\d+ door: it is \w+", session.text)
    if session.place.role == "act":
        own = [line for line in lines if line.startswith(f"- s{stream}t")]
        return str(sum(0.1 if line.endswith("good") else -0.1 for line in own))
    kept = [line for line in lines if line.endswith("good") or stream == 1]
    bad = [line for line in lines if line.endswith("bad")]
    kept += [line.replace("bad", "good") for line in bad if stream == 0]
    return "\n".join(["## Facts", *kept, fact(stream, session.place.position)])


def counting_domain():
    return dataclasses.replace(
        domains.make(scripted.small_config()), make_env=CountingEnvironment,
        prompts=prompts.CompactPrompts(), memory_format=memory.HeadedMemory(("## Facts",), 1),
        make_stream=lambda split: counting_stream, words="", memory_truth=None,
        true_memory=None, false_words=lambda text: {"good": "bad"}, floors={})


def built(sampler, domain=None, **options):
    """Parts that play with a sampler and have no model."""
    options = {"env__trials": TASKS, "rollout__memory_tokens": 900, "rollout__write_tokens": 1000,
               "rollout__act_tokens": 100, "eval__streams": 3, "eval__rollouts": 2,
               "eval__bootstrap": 200, **options}
    config = scripted.small_config(**options)
    return parts.Parts(
        config, pathlib.Path(), None, None, sampler.chat, domain or counting_domain(), sampler,
        None)
