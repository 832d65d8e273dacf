"""Floors for the evaluation of a stream, and what a compact memory knows of the truth."""

from collections.abc import Sequence

import numpy as np

from rime_jax import memory, streams
from rime_jax.envs.alchemy import bots, demonstrations
from rime_jax.envs.alchemy import game as game_lib

# Players of one episode; neither knows more than the rules show.
FLOORS = {
    "random actions": bots.random_player,
    "bank only": lambda rng: bots.bank,
}

_PAIRS = (("small", "large"), ("blue", "purple"), ("round", "pointy"))
# Word of a stone → the other one of its feature.
OPPOSITES = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}


def floor(make_player, rules: game_lib.Rules, stream: streams.Stream, seed: int) -> list[float]:
    """Performance of each trial of a stream; nan where the oracle is not positive."""
    player = make_player(np.random.default_rng(seed))
    chemistry = stream.tasks[0].payload["chemistry"]
    trials = [task.payload["trial"] for task in stream.tasks]
    scores = bots.play_episode(player, chemistry, trials, rules)
    oracles = [task.payload["oracle"] for task in stream.tasks]
    return [s / o if o > 0 else np.nan for s, o in zip(scores, oracles, strict=True)]


def compact_true_memory(task: streams.Task) -> str:
    """All facts of the task's chemistry in the compact grammar."""
    return demonstrations.memory_text(demonstrations.true_facts(task.payload["chemistry"]))


def compact_truth(task: streams.Task, items: Sequence[memory.Item]) -> dict[str, float]:
    """Shares of the seven facts of a chemistry that a memory has right, and has wrong.

    Exact on the 12-edge graph; on others a potion's fact is its effect where it has one.
    """
    truth = demonstrations.true_facts(task.payload["chemistry"])
    told = {item.key: item.value for item in items if item.kind == "fact"}
    right = sum(truth[key] == value for key, value in told.items())
    return {
        "correct_facts": right / len(truth),
        "wrong_facts": (len(told) - right) / len(truth),
    }
