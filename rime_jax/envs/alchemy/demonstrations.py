"""Scripted players and writers in the compact form: what the warm start imitates.

The actor plans: it trusts its memory and what the trial has shown, moves the first unfinished stone
towards the best stone it knows, sometimes tries a potion it knows nothing about, and banks. The
writer is a mixture of whole habits, good and bad, so that reinforcement has something to select:
it keeps and adds, or describes the last trial only, or forgets facts at random.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import env, text_compact
from rime_jax.envs.alchemy import game as game_lib
from rime_jax.envs.alchemy.text_full import COLOURS, FEATURES

# Colour word → feature word, and `best` → the three words of the best stone.
Facts = dict[str, str]
# (words of a stone, colour) pairs that changed nothing in this trial.
Blocked = set[tuple[tuple[str, ...], str]]

_OPPOSITE = {w[0]: w[2] for w in FEATURES} | {w[2]: w[0] for w in FEATURES}


@dataclasses.dataclass(frozen=True)
class Habits:
    """How demonstrations are drawn.

    Attributes:
      explore: chance that the actor tries an unknown potion when it could bank instead.
      slip: chance of a random action.
      writer_keeps, writer_last: shares of writers that keep and add, and that describe the last
        trial only; the rest forgets.
      forget: chance that the forgetting writer drops a fact; `slip_write`: that any writer drops
        or garbles one.
      lead: chance that a `try` line names an unknown colour.
    """

    explore: float
    slip: float
    writer_keeps: float
    writer_last: float
    forget: float = 0.4
    slip_write: float = 0.03
    lead: float = 0.25


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """One trial and the memory after it.

    Attributes:
      observation: the first message.
      turns: (reply, the environment's answer) pairs.
      memory: the memory written.
    """

    observation: str
    turns: list[tuple[str, str]]
    memory: str


def true_facts(chemistry: chemistry_lib.Chemistry) -> Facts:
    """What a player with full knowledge would write (exact on the 12-edge graph)."""
    facts = {}
    for colour, word in enumerate(COLOURS):
        potion = chemistry.latent_potions[colour]
        moves = (
            text_compact.changed_feature(chemistry, corner, chemistry.potion_effect(corner, potion))
            for corner in range(8)
        )
        facts[word] = next(feature for feature in moves if feature)
    facts["best"] = " ".join(text_compact.stone_words(chemistry, chemistry_lib.BEST_CORNER))
    return facts


def memory_text(facts: Mapping[str, str], lead: str | None = None) -> str:
    """A memory in the compact grammar: colours in order, the best stone, at most one lead."""
    words = [f"{key} {facts[key]}" for key in (*COLOURS, "best") if key in facts]
    if lead:
        words.append(f"try {lead}")
    return " ".join(words)


def some_true_facts(chemistry: chemistry_lib.Chemistry, rng: np.random.Generator) -> Facts:
    """All facts (a third of the time), or each with a chance drawn for the whole memory."""
    facts = true_facts(chemistry)
    chance = rng.random()
    if rng.random() < 0.35:
        return facts
    return {k: v for k, v in facts.items()
            if rng.random() < (max(chance, 0.7) if k == "best" else chance)}


def demonstrate(
    chemistry: chemistry_lib.Chemistry,
    trial: game_lib.Trial,
    rules: game_lib.Rules,
    facts: Facts,
    habits: Habits,
    rng: np.random.Generator,
) -> tuple[Demonstration, Facts]:
    """Plays a trial from a memory of `facts` and writes the next; also returns its facts."""
    form = text_compact.CompactForm()
    game = game_lib.TrialGame(chemistry, trial, rules)
    observation = form.opening(game)
    learnt: Facts = {}
    tried: set[str] = set()
    blocked: Blocked = set()
    turns = []
    while not game.done:
        known = facts | learnt
        if not any(corner is not None for corner in game.stones):
            reply = "end"  # Nothing is left to do, but the rules go on.
        elif rng.random() < habits.slip:
            reply = _slip(game, rng)
        else:
            reply = _plan(game, known, tried, blocked, habits.explore, rng)
        event = _apply(form, game, reply)
        answer = form.message(game, event, None)
        _learn(chemistry, event, answer, learnt, tried, blocked)
        turns.append((reply, answer))
    written, lead = _write(facts, learnt, habits, rng)
    return Demonstration(observation, turns, memory_text(written, lead)), written


def _apply(
    form: text_compact.CompactForm, game: game_lib.TrialGame, reply: str
) -> game_lib.Event:
    action = form.parse(reply, game)
    assert isinstance(action, env.Action), reply
    return env.act(game, action)


def _learn(
    chemistry: chemistry_lib.Chemistry, event: game_lib.Event, answer: str, learnt: Facts,
    tried: set[str], blocked: Blocked,
) -> None:
    """Notes what an answer of the game shows."""
    if event.kind == "potion":
        colour, change = answer.split()[:2]
        tried.add(colour)
        if change != "same":
            learnt[colour] = change
        else:
            blocked.add((text_compact.stone_words(chemistry, event.before), colour))
    elif event.kind == "bank":
        words = text_compact.stone_words(chemistry, event.before)
        if event.reward == chemistry_lib.VALUES[chemistry_lib.BEST_CORNER]:
            learnt["best"] = " ".join(words)
        elif event.reward == min(chemistry_lib.VALUES):
            # The worst stone is the opposite of the best in every feature.
            learnt["best"] = " ".join(_OPPOSITE[word] for word in words)


def _plan(
    game: game_lib.TrialGame, known: Facts, tried: set[str], blocked: Blocked, explore: float,
    rng: np.random.Generator,
) -> str:
    """The first stone that something can be done about; `end` where there is none."""
    for slot, corner in enumerate(game.stones):
        if corner is not None:
            stone = text_compact.stone_words(game.chemistry, corner)
            reply = _plan_stone(stone, _colours_left(game), known, tried, blocked, explore, rng)
            if reply is not None:
                return f"{text_compact.STONE_WORDS[slot]} {reply}"
    return "end"


def _plan_stone(
    stone: tuple[str, ...], left: set[str], known: Facts, tried: set[str], blocked: Blocked,
    explore: float, rng: np.random.Generator,
) -> str | None:
    best = known["best"].split() if "best" in known else None
    missing: list[str] = []
    if best is not None:
        missing = [want for have, want in zip(stone, best, strict=True) if have != want]
        if not missing:
            return "bank"
        colour_of = {feature: colour for colour, feature in known.items() if colour != "best"}

        def usable(feature: str) -> bool:
            return colour_of.get(feature) in left and (stone, colour_of[feature]) not in blocked

        # What a bottleneck held up comes first, once the stone is elsewhere.
        held_up = {known.get(colour) for _, colour in blocked}
        for feature in sorted(missing, key=lambda feature: feature not in held_up):
            if usable(feature):
                return f"{feature} {colour_of[feature]}"
        if any(f in held_up and colour_of.get(f) in left for f in missing):
            # The way round leads over a feature that is right already, and back.
            for feature in (f for f in stone if f in best):
                away = _OPPOSITE[feature]
                if usable(away) and colour_of.get(feature) in left:
                    return f"{away} {colour_of[away]}"
    unknown = [c for c in COLOURS if c in left and c not in known and c not in tried]
    if unknown and rng.random() < explore:
        return f"? {unknown[rng.integers(len(unknown))]}"
    return "bank" if best is None or len(missing) == 1 else None


def _slip(game: game_lib.TrialGame, rng: np.random.Generator) -> str:
    slots = [i for i, corner in enumerate(game.stones) if corner is not None]
    left = sorted(_colours_left(game))
    number = text_compact.STONE_WORDS[slots[rng.integers(len(slots))]]
    u = rng.random()
    if u < 0.12:
        return "end"
    if u < 0.32 or not left:
        return f"{number} bank"
    words = text_compact.FEATURE_WORDS
    intent = "?" if rng.random() < 0.5 else words[rng.integers(len(words))]
    return f"{number} {intent} {left[rng.integers(len(left))]}"


def _colours_left(game: game_lib.TrialGame) -> set[str]:
    perceived = game.chemistry.perceived_potions
    return {COLOURS[perceived[p]] for p in game.potions if p is not None}


def _write(
    before: Facts, learnt: Facts, habits: Habits, rng: np.random.Generator
) -> tuple[Facts, str | None]:
    """The facts of the next memory by one of the three habits, and a lead or None."""
    u = rng.random()
    keeps = u < habits.writer_keeps
    last_only = not keeps and u < habits.writer_keeps + habits.writer_last
    base = dict(learnt) if last_only else before | learnt
    drop = habits.slip_write if keeps or last_only else habits.forget
    written: Facts = {}
    for key, value in base.items():
        if rng.random() < drop:
            continue
        written[key] = _garble(key, rng) if rng.random() < habits.slip_write else value
    unknown = [c for c in COLOURS if c not in base]
    lead = None
    if unknown and rng.random() < habits.lead:
        lead = unknown[rng.integers(len(unknown))]
    return written, lead


def _garble(key: str, rng: np.random.Generator) -> str:
    words = [words[(0, 2)[rng.integers(2)]] for words in FEATURES]
    return " ".join(words) if key == "best" else words[rng.integers(3)]
