"""Recorded episodes: reading them, reading a train/held-out split, and replaying a recording."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import game, graphs, levels


@dataclasses.dataclass(frozen=True)
class Episode:
    """One recorded episode.

    Attributes:
      id: its number in the file.
      chemistry: fixed over the episode.
      trials: what each trial starts with.
      oracle: best possible score of each trial under the benchmark's step limit.
    """

    id: int
    chemistry: chemistry_lib.Chemistry
    trials: tuple[game.Trial, ...]
    oracle: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Split:
    """Which episodes train and which are held out.

    Attributes:
      order: ids of the training episodes in the order of training.
      keep: number of training episodes by edges of their graph.
      eval: ids of the held-out episodes.
    """

    order: tuple[int, ...]
    keep: Mapping[int, int]
    eval: tuple[int, ...]


def read_episodes(path: str | pathlib.Path) -> dict[int, Episode]:
    """Episodes by id from JSON lines {episode, chem, trials: [[stones, potions]…], oracle}.

    Raises:
      ValueError: names the file, the line and the field.
    """
    episodes = {}
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), start=1):
        try:
            episode = _episode(json.loads(line))
            if episode.id in episodes:
                raise ValueError(f"episode: {episode.id} was there before")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        episodes[episode.id] = episode
    return episodes


def read_split(path: str | pathlib.Path, episodes: Mapping[int, Episode]) -> Split:
    """A split from JSON {order, keep, eval}, checked against the episodes it speaks of.

    Raises:
      ValueError: names the file and the field.
    """
    text = pathlib.Path(path).read_text()
    try:
        raw = json.loads(text)
        order, keep, held_out = (_field(raw, field) for field in ("order", "keep", "eval"))
        split = Split(tuple(order), {int(k): n for k, n in keep.items()}, tuple(held_out))
        _check_split(split, episodes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return split


def replay(vector: Mapping[str, Any]) -> list[str]:
    """Plays a recorded episode again and lists every disagreement; an empty list is agreement.

    The chemistry and items are drawn from the recorded level and seed, then every recorded action
    is taken and reward, boundary, stones, potions, opening of each trial and total are compared.

    Args:
      vector: {id, level, seed, num_trials, max_steps, end_trial_action, chem, trials: [{stones,
        potions, S0, P0, steps: [[action, reward, kind, (S, P)]…]}…], total}.
    """
    rules = game.Rules(max_steps=vector["max_steps"], end_trial_action=vector["end_trial_action"])
    chemistry, trials = levels.sample_episode(
        vector["level"], vector["seed"], vector["num_trials"], rules
    )
    found = _Mismatches(f"episode {vector['id']}")
    found.compare("chem", chemistry.to_json(), vector["chem"])
    found.compare("number of trials", len(trials), len(vector["trials"]))
    if found.lines:
        return found.lines
    env = game.SymbolicAlchemy(chemistry, trials, rules)
    total = 0
    for t, (drawn, recorded) in enumerate(zip(trials, vector["trials"], strict=True)):
        found.compare(f"trial {t} index", env.trial, t)
        found.compare(f"trial {t} stones", list(drawn.stones), recorded["stones"])
        found.compare(f"trial {t} potions", list(drawn.potions), recorded["potions"])
        found.compare(f"trial {t} S0, P0", _shown(env), [recorded["S0"], recorded["P0"]])
        for s, (action, reward, kind, *shown) in enumerate(recorded["steps"]):
            if env.done:
                return [*found.lines, f"{found.where}: ended before trial {t} step {s}"]
            step = env.step(action)
            total += step.reward
            found.compare(f"trial {t} step {s}", [step.reward, step.boundary], [reward, kind])
            if shown:
                found.compare(f"trial {t} step {s} S, P", _shown(env), shown)
    found.compare("done", env.done, True)
    found.compare("total", total, vector["total"])
    return found.lines


class _Mismatches:
    def __init__(self, where: str):
        self.where = where
        self.lines: list[str] = []

    def compare(self, what: str, got: Any, expected: Any) -> None:
        if got != expected:
            self.lines.append(f"{self.where}: {what} is {got!r}, recorded {expected!r}")


def _shown(env: game.SymbolicAlchemy) -> list:
    """[stones, potions] in the recorded form, read back from the observation vector."""
    vector = env.observation()
    stones = [
        None if used else [*(int(c) for c in coordinates), round(3 * float(indicator))]
        for *coordinates, indicator, used in vector[: 5 * game.STONE_SLOTS].reshape(-1, 5)
    ]
    potions = [
        "." if used else str(round(3 * (float(kind) + 1)))
        for kind, used in vector[5 * game.STONE_SLOTS :].reshape(-1, 2)
    ]
    return [stones, "".join(potions)]


def _episode(raw: Any) -> Episode:
    number, chem, trials, oracle = (
        _field(raw, field) for field in ("episode", "chem", "trials", "oracle")
    )
    if len(oracle) != len(trials):
        raise ValueError(f"oracle: {len(oracle)} values for {len(trials)} trials")
    return Episode(
        number,
        chemistry_lib.from_vector(chem),
        tuple(_trial(trial, t) for t, trial in enumerate(trials)),
        tuple(oracle),
    )


def _trial(raw: Any, index: int) -> game.Trial:
    if len(raw) != 2:
        raise ValueError(f"trials[{index}]: expected [stones, potions], got {raw!r}")
    for name, items, kinds in zip(
        ("stones", "potions"), raw, (graphs.CORNERS, graphs.POTIONS), strict=True
    ):
        if not all(isinstance(item, int) and 0 <= item < kinds for item in items):
            raise ValueError(f"trials[{index}]: {name} must be 0..{kinds - 1}, got {items!r}")
    return game.Trial(tuple(raw[0]), tuple(raw[1]))


def _check_split(split: Split, episodes: Mapping[int, Episode]) -> None:
    for field, ids in (("order", split.order), ("eval", split.eval)):
        unknown = [i for i in ids if i not in episodes]
        if unknown:
            raise ValueError(f"{field}: no episode {unknown[0]} in the episode file")
        if len(set(ids)) < len(ids):
            raise ValueError(f"{field}: an episode is named twice")
    if set(split.order) & set(split.eval):
        raise ValueError("order and eval share an episode")
    tiers = [episodes[i].chemistry.n_edges for i in split.order]
    counts = {edges: tiers.count(edges) for edges in set(tiers)}
    if counts != split.keep:
        raise ValueError(f"keep: says {split.keep}, but order has {counts} episodes by edges")


def _field(raw: Any, field: str) -> Any:
    if not isinstance(raw, dict) or field not in raw:
        raise ValueError(f"{field}: missing")
    return raw[field]
