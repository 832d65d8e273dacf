"""What several tests share: a sampler that plays given texts, and a very small model."""

import asyncio
import atexit
import dataclasses
import functools
import pathlib
import shutil
import tempfile

import numpy as np

from rime_jax import config as config_lib
from rime_jax import domains, warm_start
from rime_jax.envs.alchemy import text_compact
from rime_jax.policy import chat as chat_lib
from rime_jax.policy import weights, words
from rime_jax.rollout import collect as collect_lib
from rime_jax.rollout import loop
from rime_jax.sampler.base import Generation

TOKENIZER = words.word_tokenizer(text_compact.WORDS)
CHAT = chat_lib.ChatTokens(TOKENIZER)


@dataclasses.dataclass(frozen=True)
class Call:
    """One request of a reply: whose, at which attempt, which turn of the session."""

    role: str
    group: int
    sibling: int
    position: int
    attempt: int
    turn: int


class ScriptedSampler:
    """A `sampler.base.Sampler` without a model: `script(call)` gives the text of each reply.

    An exception in place of a text is raised. Log-probabilities are made up, a different one for
    each token of a session; `opened` keeps every session in order.
    """

    version = 7

    def __init__(self, script, context_tokens=512, chat=CHAT):
        self.context_tokens = context_tokens
        self.chat = chat
        self.opened, self.closed = [], False
        self._script = script

    def open(self, role, ids, seed, parent=None):
        if parent is not None:
            assert list(ids[: len(parent.ids)]) == parent.ids
            parent.close()
        *_, group, sibling, position, attempt, index = seed
        assert role == ("act", "write")[index]
        place = Call(role, group, sibling, position, attempt, 0)
        self.opened.append(ScriptedSession(self, place, list(ids)))
        return self.opened[-1]

    async def publish(self, params, version):
        self.version = version

    async def close(self):
        self.closed = True

    def sessions(self, role, position, sibling=0):
        return [s for s in self.opened if (s.place.role, s.place.position, s.place.sibling)
                == (role, position, sibling)]


class ScriptedSession:
    """See `sampler.base.Session`; `opening` are its first ids, `generated` what it sampled."""

    def __init__(self, sampler, place, ids):
        self.ids, self.opening, self.place = ids, list(ids), place
        self.generated = []
        self.closed = False
        self._sampler = sampler

    def extend(self, ids):
        self.ids.extend(ids)

    async def generate(self, max_new_tokens, temperature=1.0):
        assert not self.closed
        await asyncio.sleep(0)
        if len(self.ids) >= self._sampler.context_tokens:
            return Generation([], [], [], "context")
        call = dataclasses.replace(self.place, turn=len(self.generated))
        reply = self._sampler._script(call)
        if isinstance(reply, Exception):
            raise reply
        room = self._sampler.context_tokens - len(self.ids)
        chat = self._sampler.chat
        whole = [*chat.text(reply), chat.end_of_turn]
        ids = whole[: min(max_new_tokens, room)]
        finish = "stop" if ids == whole else "length" if len(ids) == max_new_tokens else "context"
        first = len(self.ids)
        made = Generation(ids, [-0.001 * (first + i + 1) for i in range(len(ids))],
                          [self._sampler.version] * len(ids), finish)
        self.ids.extend(ids)
        self.generated.append((first, made))
        return made

    def close(self):
        self.closed = True


def small_config(**values):
    """The main job with three trials; `values` are dotted names with `__` for the dots."""
    config = config_lib.default()
    config.env.trials = 3
    config.rollout.streams_per_step = 2
    config.rollout.group_size = 4
    for name, value in values.items():
        *parents, last = name.split("__")
        node = config
        for parent in parents:
            node = node[parent]
        node[last] = value
    config_lib.validate(config)
    return config


def streams_of(config, n=1, split="train"):
    source = domains.make(config).make_stream(split)
    return [source(i, np.random.default_rng((5, i))) for i in range(n)]


def play(script, *, config=None, streams=None, siblings=1, judge=None, make_env=None,
         context_tokens=512, given_memory=None):
    """Rollouts of scripted replies in the real loop; returns (rollouts, sampler)."""
    config = config or small_config()
    domain = domains.make(config)
    if make_env is not None:
        domain = dataclasses.replace(domain, make_env=make_env)
    sampler = ScriptedSampler(script, context_tokens)
    context = loop.Context(
        sampler=sampler, judge=judge, domain=domain, chat=CHAT, options=config.rollout,
        judge_timeout_s=config.judge.timeout_s, temperature=1.0, given_memory=given_memory)
    rollouts = asyncio.run(
        collect_lib.collect(context, streams or streams_of(config), siblings, (3,)))
    return rollouts, sampler


def warm_config():
    """A warm start of seconds: enough for replies that are actions and memories that parse.

    Its writer keeps often, so that siblings' memories, and their rewards, differ in every step.
    """
    config = small_config()
    for name, value in dict(steps=250, writer_keeps=0.42, writer_last=0.45, sequences=32,
                            hidden_size=32, intermediate_size=64, layers=1, heads=2,
                            lr=1e-2).items():
        config.warm_start[name] = value
    return config


@functools.cache
def warm_model():
    """Path of the model directory that `warm_config` makes, once a process."""
    directory = tempfile.mkdtemp(prefix="rime_jax_test_model")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    policy, params, tokenizer = warm_start.train(warm_config())
    weights.save(pathlib.Path(directory), policy, params, tokenizer)
    return directory
