"""The oracle against brute force and against the recorded values."""

import functools

from hypothesis import given, settings
from hypothesis import strategies as st

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import episodes, game, graphs, oracle


def brute_force(graph, trial, max_steps):
    """Tries every sequence of actions."""
    moves = graphs.GRAPHS[graph].moves

    @functools.cache
    def best(stones, potions, steps):
        if steps == 0:
            return 0
        score = 0
        for i, stone in enumerate(stones):
            others = stones[:i] + stones[i + 1 :]
            value = chemistry_lib.VALUES[stone]
            score = max(score, value + best(others, potions, steps - 1))
            for j, potion in enumerate(potions):
                after = tuple(sorted((*others, moves[stone][potion])))
                score = max(score, best(after, potions[:j] + potions[j + 1 :], steps - 1))
        return score

    return best(tuple(sorted(trial.stones)), tuple(sorted(trial.potions)), max_steps)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 108),
    st.lists(st.integers(0, 7), min_size=1, max_size=3),
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.integers(1, 8),
)
def test_oracle_equals_brute_force_under_a_step_limit(graph, stones, potions, max_steps):
    chemistry = chemistry_lib.Chemistry((0, 1, 2), (1, 1, 1), (1, 1, 1), graph)
    trial = game.Trial(tuple(stones), tuple(potions))
    rules = game.Rules(stones=len(stones), potions=len(potions), max_steps=max_steps)
    expected = brute_force(graph, trial, max_steps)
    assert oracle.best_score(chemistry, trial, rules) == expected


def test_oracle_equals_the_recorded_values(recorded):
    read = episodes.read_episodes(recorded("alchemy_episodes1000.jsonl"))
    assert len(read) == 1000
    for episode in read.values():
        scores = [oracle.best_score(episode.chemistry, t, game.Rules()) for t in episode.trials]
        assert tuple(scores) == episode.oracle
