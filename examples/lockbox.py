"""A domain of one's own in one file: boxes whose lock has one hidden digit.

    python -m rime_jax.train --config=examples/lockbox.py --set steps=3

All boxes of a stream have the same digit, so a writer that writes it down opens the later ones at
the first try. docs/new_environment.md goes through this file.
"""

import re

from rime_jax import config, memory, streams
from rime_jax.envs.base import Outcome, Turn
from rime_jax.judge.rubric import DomainWords
from rime_jax.rollout.domain import Domain


def get_config():
    c = config.default()
    c.name, c.env.domain, c.model.path = "lockbox", "examples.lockbox:make", "tiny-bytes-v1"
    c.env.trials, c.env.max_steps = 4, 5
    c.rollout.act_tokens, c.rollout.write_tokens, c.rollout.memory_tokens = 8, 32, 24
    c.rollout.context_tokens = c.learner.row_tokens = 512
    c.rollout.streams_per_step, c.rollout.group_size, c.eval.streams = 2, 8, 8
    c.sampler.slots, c.sampler.prefill_chunks = 16, (16, 128)
    return c


def make(c):
    """Called with the whole configuration."""
    def stream_maker(split):
        def make_stream(i, rng):  # `rng` belongs to stream i of a run, or of the evaluation.
            digit = int(rng.integers(10))
            tasks = [streams.Task(f"{split}-{i}-{t}", digit) for t in range(c.env.trials)]
            return streams.Stream(f"{split}-{i}", tuple(tasks), {"digit": digit})
        return make_stream

    return Domain(
        make_env=lambda: Lockbox(c.env.max_steps), prompts=Prompts(), memory_format=Digits(),
        make_stream=stream_maker,
        judge_words=DomainWords(task="opens boxes with a lock of one digit",
                                fact="which digit opens a box", lead="a digit to try next"),
        true_memory=lambda task: f"The digit is {task.payload}.")


class Lockbox:
    """One box; a reward of 1 at the first try, less for later ones, 0 if it stays shut."""

    inline = True  # Every call is pure and quick.

    def __init__(self, tries):
        self._tries = tries

    def reset(self, task):
        self._digit, self._used, self._open = task.payload, 0, False
        return f"A box. You may try {self._tries} digits."

    def step(self, reply):
        self._used += 1
        found = re.search(r"\d", reply)
        self._open = found is not None and int(found[0]) == self._digit
        return Turn("It opens." if self._open else "It stays shut. Another digit?",
                    done=self._open or self._used >= self._tries,
                    format_error=None if found else "no_digit")

    def outcome(self):
        reward = 1 - (self._used - 1) / self._tries if self._open else 0.0
        return Outcome(reward, performance=reward, solved=self._open,
                       out_of_turns=not self._open, metrics={"tries": self._used},
                       message="It opened." if self._open else "It stayed shut.")

    def close(self):
        pass


class Digits:
    """The memory's grammar: any text; each digit in it is a fact."""

    def parse_items(self, text):
        return [memory.Item("fact", "digit", d) for d in re.findall(r"\d", text)], None


class Prompts:
    """What the actor and the writer are told."""

    def act(self, memory, observation):
        return [{"role": "user", "content": f"Memory: {memory}\n{observation}"}]

    def write_on(self, last_message, outcome):
        return f"{last_message}\n{outcome} Write the memory for the next box."

    def write_afresh(self, memory, transcript, outcome):
        played = "\n".join(f"{speaker}: {text}" for speaker, text in transcript)
        return [{"role": "user", "content": f"Memory: {memory}\n{played}\n{outcome} Write the "
                                            "memory for the next box."}]

    def in_context(self, observation):
        return self.act("", observation)

    def next_task(self, last_message, outcome, observation):
        return f"{last_message}\n{outcome}\n{observation}"
