"""What the rollout loop and the evaluation ask of a domain."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from rime_jax import memory, prompts, streams
from rime_jax.envs import base as env_base
from rime_jax.judge import rubric

Split = Literal["train", "heldout"]


@dataclasses.dataclass(frozen=True)
class Domain:
    """One domain in one text form; what has a default serves evaluation or the logs.

    Attributes:
      make_env: a fresh environment for one task.
      prompts: the wording of both roles.
      memory_format: the grammar of a memory.
      make_stream: split → (i, rng) → stream i, for `streams.StreamSource`.
      judge_words: of the judge's rubric.
      words: text that a tokenizer has to know in full; '' where any tokenizer will do.
      memory_truth: (task, items of a memory) → what the memory knows, for the logs only.
      true_memory: task → the memory of a writer that knows everything, for evaluation only.
      false_words: a memory → its words that can be replaced so that it claims something false, and
        what each becomes; for evaluation only.
      floors: name → (stream, seed) → performance of each task, by scripted players.
    """

    make_env: Callable[[], env_base.Environment]
    prompts: prompts.Prompts
    memory_format: memory.MemoryFormat
    make_stream: Callable[[Split], Callable[[int, np.random.Generator], streams.Stream]]
    judge_words: rubric.DomainWords
    words: str = ""
    memory_truth: Callable[[streams.Task, Sequence[memory.Item]], dict[str, float]] | None = None
    true_memory: Callable[[streams.Task], str] | None = None
    false_words: Callable[[str], Mapping[str, str]] | None = None
    floors: Mapping[str, Callable[[streams.Stream, int], list[float]]] = dataclasses.field(
        default_factory=dict)
