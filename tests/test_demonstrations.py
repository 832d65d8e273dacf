"""What the warm start imitates: legal play, true facts, the vocabulary, training chemistries."""

import dataclasses

import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import domains, warm_start
from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import demonstrations, graphs, text_compact
from rime_jax.envs.alchemy import game as game_lib
from rime_jax.memory import CompactMemory
from tests.scripted import CHAT, TOKENIZER, small_config, streams_of

FORMAT = CompactMemory()
CAREFUL = demonstrations.Habits(explore=0.9, slip=0.1, writer_keeps=1.0, writer_last=0.0,
                                slip_write=0.0)


def told(memory):
    items, malformed = FORMAT.parse_items(memory)
    assert malformed is None
    return {item.key: item.value for item in items if item.kind == "fact"}


def chains(n, habits=CAREFUL, trials=6):
    """(chemistry, memory before, demonstration) of n streams, each trial from the last memory."""
    config = small_config(env__trials=trials)
    rules = domains.alchemy_rules(config.env)
    rng = np.random.default_rng(4)
    for stream in streams_of(config, n):
        memory, facts = "", {}
        for task in stream.tasks:
            chemistry = task.payload["chemistry"]
            shown, facts = demonstrations.demonstrate(
                chemistry, task.payload["trial"], rules, facts, habits, rng)
            yield chemistry, memory, shown
            memory = shown.memory


def test_the_true_facts_are_what_potions_do_at_every_corner_of_the_full_graph():
    """On 12 edges each potion moves half of the corners, and always by the same feature."""
    for chemistry in {c for c, _, _ in chains(20, trials=1)}:
        assert chemistry.n_edges == 12
        facts = demonstrations.true_facts(chemistry)
        for colour, word in enumerate(demonstrations.COLOURS):
            potion = chemistry.latent_potions[colour]
            axis, up = divmod(potion, 2)
            for corner in range(graphs.CORNERS):
                after = chemistry.potion_effect(corner, potion)
                assert after == (corner & ~(1 << axis) | up << axis)
                if after != corner:
                    assert facts[word] in text_compact.stone_words(chemistry, after)
                    assert facts[word] not in text_compact.stone_words(chemistry, corner)
        best = " ".join(text_compact.stone_words(chemistry, chemistry_lib.BEST_CORNER))
        assert facts["best"] == best


def test_careful_writers_write_true_facts_only_and_forget_none():
    known = []
    for chemistry, before, shown in chains(60):
        truth, after = demonstrations.true_facts(chemistry), told(shown.memory)
        assert after.items() <= truth.items()
        assert told(before).items() <= after.items()
        known.append(len(after) / len(truth))
    last = np.reshape(known, (60, 6)).mean(0)
    assert (np.diff(last) >= 0).all() and last[-1] > 0.7


def test_clean_demonstrations_slip_rarely_and_noisy_ones_contain_bad_habits():
    noisy = demonstrations.Habits(explore=0.4, slip=0.03, writer_keeps=0.4, writer_last=0.45)

    def forgotten(habits):
        shares = [len(told(before).keys() - told(shown.memory).keys()) / len(told(before))
                  for _, before, shown in chains(60, habits) if told(before)]
        return np.mean(shares)

    assert forgotten(CAREFUL) == 0
    assert forgotten(noisy) > 0.2


def test_demonstrations_use_words_of_the_vocabulary_only():
    for _, _, shown in chains(20):
        for text in (shown.observation, shown.memory, *(t for turn in shown.turns for t in turn)):
            ids = CHAT.text(text)
            assert TOKENIZER.unk_token_id not in ids and CHAT.decode(ids) == text


def test_demonstrated_replies_are_actions_and_lead_to_the_end():
    for _, _, shown in chains(20):
        assert 1 <= len(shown.turns) <= 6
        assert not any("invalid" in answer for _, answer in shown.turns)


def test_a_memory_fits_into_its_budget():
    budget = config_lib.default().rollout.memory_tokens
    assert max(len(shown.memory.split()) for _, _, shown in chains(60)) <= budget


def test_given_memories_are_true():
    rng = np.random.default_rng(0)
    for chemistry in {c for c, _, _ in chains(20, trials=1)}:
        facts = demonstrations.some_true_facts(chemistry, rng)
        assert facts.items() <= demonstrations.true_facts(chemistry).items()


@pytest.mark.parametrize(("edges", "hold_out"), [
    ((12,), "chemistries"), ((12, 10, 9, 8, 7), "chemistries"), ((10, 9, 8, 7), "graphs")])
def test_what_is_held_out_is_never_trained_on_nor_demonstrated(monkeypatch, edges, hold_out):
    config = small_config(env__trials=1, env__edges=edges, env__hold_out=hold_out)
    part = (lambda chemistry: chemistry.graph) if hold_out == "graphs" else (lambda c: c.id)

    def parts_of(n, split):
        return {part(s.tasks[0].payload["chemistry"]) for s in streams_of(config, n, split)}

    held_out, trained = parts_of(400, "heldout"), parts_of(2000, "train")
    demonstrated = set()
    demonstrate = demonstrations.demonstrate

    def spy(chemistry, *arguments):
        demonstrated.add(part(chemistry))
        return demonstrate(chemistry, *arguments)

    monkeypatch.setattr(demonstrations, "demonstrate", spy)
    shown = warm_start.demonstrated_sequences(config, CHAT, False, np.random.default_rng(1))
    for _ in range(2000):
        next(shown)
    fewest = 80 if hold_out == "graphs" else 250
    assert len(trained) > fewest and len(demonstrated) > fewest
    assert not held_out & trained and not held_out & demonstrated


@pytest.mark.parametrize("graph", range(0, len(graphs.GRAPHS), 3))
def test_the_planner_routes_round_missing_edges_until_a_colour_that_it_needs_runs_out(graph):
    rules = game_lib.Rules(stones=1, potions=12, max_steps=20, end_trial_action=True,
                           values="hidden", supply="every_colour", end_when_banked=True)
    chemistry = chemistry_lib.Chemistry((1, 2, 0), (1, -1, 1), (1, 1, -1), graph)
    facts = demonstrations.true_facts(chemistry)
    knowing = dataclasses.replace(CAREFUL, slip=0.0)
    for corner in range(graphs.CORNERS):
        trial = game_lib.Trial((corner,), tuple(range(6)) * 2)
        shown, _ = demonstrations.demonstrate(
            chemistry, trial, rules, facts, knowing, np.random.default_rng(0))
        used, fruitless = [], set()
        stone = tuple(shown.observation.split()[1:])
        for reply, answer in shown.turns[:-1]:
            used.append(reply.split()[2])
            assert (stone, used[-1]) not in fruitless
            if "same" in answer:
                fruitless.add((stone, used[-1]))
            stone = tuple(answer.split()[-3:])
        missing = set(facts["best"].split()) - set(stone)
        gone = {facts[colour] for colour in used if used.count(colour) == 2}
        assert not missing or missing & gone


def test_a_stone_that_is_stuck_does_not_keep_the_planner_from_the_next():
    rules = game_lib.Rules(stones=2, potions=1, max_steps=6, end_trial_action=True,
                           values="hidden", end_when_banked=True)
    chemistry = chemistry_lib.Chemistry((0, 1, 2), (1, 1, 1), (1, 1, 1), 0)
    trial = game_lib.Trial((0, chemistry_lib.BEST_CORNER), (0,))
    shown, _ = demonstrations.demonstrate(
        chemistry, trial, rules, demonstrations.true_facts(chemistry),
        dataclasses.replace(CAREFUL, slip=0.0), np.random.default_rng(0))
    assert [reply for reply, _ in shown.turns] == ["1 bank", "end"]
