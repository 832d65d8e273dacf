"""The sampler's protocol: token ids in, token ids and log-probabilities out."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar

from rime_jax import config

Finish = Literal["stop", "length", "context"]


class SamplerStop(config.ConfigError):
    """The sampler can serve no more and trying again cannot help; it ends the program."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """The tokens of one `generate` call.

    Attributes:
      ids: sampled token ids, the stop token included when one was sampled.
      logprobs: log-probability of each id at temperature 1 over the full vocabulary.
      versions: policy version that produced each id.
      finish: `stop` (a stop id was sampled), `length` (max_new_tokens) or `context` (the session
        is full).
    """

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Finish


class Session(Protocol):
    """One growing list of token ids, with whatever cache the sampler keeps for it.

    `ids` holds everything so far, prompts and sampled tokens, verbatim.
    """

    ids: list[int]

    def extend(self, ids: Sequence[int]) -> None:
        """Appends ids that were not sampled (an environment's message)."""

    async def generate(self, max_new_tokens: int, temperature: float = 1.0) -> Generation:
        """Samples until a stop id, `max_new_tokens`, or the end of the context.

        Raises:
          TimeoutError: it took longer than `sampler.generation_s`; the session is as it was.
          RuntimeError: the session or the sampler is closed.
        """

    def close(self) -> None:
        """Gives the cache back; may be called more than once."""


S = TypeVar("S", bound=Session)


class Sampler(Protocol[S]):
    """Generates for many sessions at once.

    Attributes:
      context_tokens: tokens of one session.
      generated_tokens: since the start.
      publish_s: seconds of the last publish.
    """

    context_tokens: int
    generated_tokens: int
    publish_s: float

    def open(
        self, role: str, ids: Sequence[int], seed: Sequence[int], parent: S | None = None
    ) -> S:
        """A new session that starts from `ids`.

        Args:
          role: `act` or `write`; the role map says which parameter set serves it.
          ids: the prompt.
          seed: integers; with the position of a token they decide its randomness, so that the
            output does not depend on what else is being generated.
          parent: a session whose ids are a prefix of `ids`. It is closed, and its cache is taken
            over if the same parameter set serves both.
        """

    async def publish(self, params: Any, version: int) -> None:
        """Puts new parameter sets into use; later tokens carry `version`.

        Caches made with older parameters are computed again before the next token.
        """

    def warm_up(self) -> None:
        """Does ahead what would make the first request slow; needs a publish."""

    def metrics(self) -> dict[str, float]:
        """What happened since the last call, under the names of its curves (`sampler/…`)."""

    async def close(self) -> None:
        """Gives up what it holds: tasks, connections, device memory, files of its own.

        Generations in progress fail, and none can begin any more. May be called more than once, in
        the event loop of the generations.
        """
