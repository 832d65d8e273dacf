"""Reference players against the published scores, and the belief against enumeration."""

import itertools

import numpy as np
import pytest

from rime_jax.envs.alchemy import bots, episodes, game, graphs, levels, observer, oracle
from rime_jax.envs.alchemy import chemistry as chemistry_lib


def benchmark(seed, trials=10):
    name = "perceptual_mapping_randomized_with_random_bottleneck"
    return levels.sample_episode(name, seed, trials, game.Rules())


def test_published_floors_are_met_on_the_recorded_episodes(recorded):
    read = episodes.read_episodes(recorded("alchemy_episodes1000.jsonl")).values()
    rng = np.random.default_rng(0)
    bank, random = (
        np.mean([sum(bots.play_episode(p, e.chemistry, e.trials, game.Rules())) for e in read])
        for p in (bots.bank, bots.random_player(rng))
    )
    assert round(bank, 1) == 67.4
    assert random == pytest.approx(147.0, abs=4.0)


def test_the_random_player_keeps_steps_for_banking():
    rules = game.Rules(max_steps=4)
    trial = game.TrialGame(benchmark(0)[0], game.Trial((3, 5, 6), (0,) * 12), rules)
    bots.random_player(np.random.default_rng(0))(trial)
    assert trial.score > 0


def test_belief_equals_enumeration_over_all_chemistries():
    chemistry, (trial, *_) = benchmark(5)
    play = game.TrialGame(chemistry, trial, game.Rules())
    belief, seen = observer.Belief(), []
    for stone, potion in ((0, 0), (1, 1), (0, 2), (2, 3), (2, 4)):
        colour = chemistry.perceived_potions[play.potions[potion]]
        event = play.use_potion(stone, potion)
        before, after = (chemistry.perceived_stones[c] for c in (event.before, event.after))
        seen.append((before, colour, after))
        as_bits = [sum((x > 0) << k for k, x in enumerate(c)) for c in (before, after)]
        belief.see_effect(as_bits[0], colour, as_bits[1])
    for (p, maps), signs in itertools.product(
        enumerate(chemistry_lib.POTION_MAPS), chemistry_lib.STONE_MAPS
    ):
        flip = sum((sign < 0) << k for k, sign in enumerate(signs))
        for g in range(0, 109, 9):
            other = chemistry_lib.Chemistry(*maps, signs, g)
            agrees = all(
                other.potion_effect(
                    other.perceived_stones.index(before), other.latent_potions[colour]
                )
                == other.perceived_stones.index(after)
                for before, colour, after in seen
            )
            assert (belief.weights[p, flip, g] > 0) == agrees
    left = belief.weights[belief.weights > 0]
    ratio = belief.weights / graphs.PRIOR
    assert left.sum() == pytest.approx(1)
    np.testing.assert_allclose(ratio[belief.weights > 0], ratio.max(), rtol=1e-6)


def test_an_impossible_sight_is_an_error():
    belief = observer.Belief()
    belief.see_stone(0, 3)
    with pytest.raises(ValueError, match="agrees"):
        belief.see_stone(0, -3)


def test_the_ideal_observer_soon_plays_like_the_oracle():
    lost, late = [], []
    for seed in range(6):
        chemistry, trials = benchmark(seed, 5)
        best = [oracle.best_score(chemistry, t, game.Rules()) for t in trials]
        player = observer.observer_player(np.random.default_rng(seed))
        scores = bots.play_episode(player, chemistry, trials, game.Rules())
        assert all(s <= b for s, b in zip(scores, best, strict=True))
        lost.append(sum(best) - sum(scores))
        late.append(sum(best[2:]) - sum(scores[2:]))
    assert np.mean(lost) < 12
    assert np.mean(late) < 2


def test_the_ideal_observer_refuses_what_it_cannot_see():
    chemistry, trials = benchmark(0, 1)
    player = observer.observer_player(np.random.default_rng(0))
    with pytest.raises(ValueError, match="shown"):
        bots.play_episode(player, chemistry, trials, game.Rules(values="hidden"))
