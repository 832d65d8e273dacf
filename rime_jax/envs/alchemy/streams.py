"""Streams of trials: one hidden chemistry, T trials; training sees none of evaluation's."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from rime_jax import streams as streams_lib
from rime_jax.envs.alchemy import chemistry as chemistry_lib
from rime_jax.envs.alchemy import episodes, game, graphs, oracle

SplitName = Literal["train", "heldout"]
HoldOut = Literal["chemistries", "graphs"]
MakeStream = Callable[[int, np.random.Generator], streams_lib.Stream]

# Tiers of difficulty by edges of the graph, easiest first, and how often the benchmark draws them.
TIERS = (12, 10, 9, 8, 7)
TIER_PRIOR = tuple(
    float(sum(p for p, g in zip(graphs.PRIOR, graphs.GRAPHS, strict=True) if g.n_edges == edges))
    for edges in TIERS
)

# Trials drawn for one that reaches `min_oracle` before the rules are called impossible.
_MAX_DRAWS = 10_000


def make_streams(
    split: SplitName,
    *,
    edges: Sequence[int],
    trials: int,
    rules: game.Rules,
    heldout_fraction: float,
    split_seed: int,
    curriculum_streams: int,
    hold_out: HoldOut,
) -> MakeStream:
    """Generated streams, for `streams.StreamSource`.

    Within each tier a permutation fixed by `split_seed` divides the chemistries (graph, potion map,
    stone map; no rotation), or its graphs with all their chemistries, into a held-out and a
    training part. Training chemistries are drawn with replacement; held-out ones follow one
    another, so that the first streams of a single tier are all different. The payload of a task is
    {chemistry: Chemistry, trial: Trial, oracle: int}, the oracle under the rules' own step limit;
    the info of a stream is {edges: int, chemistry: str}.

    Args:
      split: `train` or `heldout`.
      edges: tiers to draw from, a subset of `TIERS`, in the prior's proportions.
      trials: T, trials in a stream.
      rules: of every trial.
      heldout_fraction: share of each tier's chemistries or graphs that is held out, in (0, 1).
      split_seed: of the permutation.
      curriculum_streams: streams in one pass of the training curriculum, whose tiers come in order,
        12 edges first; 0 draws tiers at random. Held-out streams are never ordered.
      hold_out: what is divided; a held-out chemistry's graph still occurs in training, with other
        maps.

    Raises:
      ValueError: an argument out of range.
    """
    tiers = tuple(tier for tier in TIERS if tier in edges)
    if not tiers or len(tiers) != len(edges):
        raise ValueError(f"edges is {edges!r}; it must name different tiers among {TIERS}")
    if trials < 1 or curriculum_streams < 0:
        raise ValueError(f"trials ({trials}) must be >= 1, curriculum_streams >= 0")
    pools = {t: _pool(t, split, heldout_fraction, split_seed, hold_out) for t in tiers}
    weights = np.array([TIER_PRIOR[TIERS.index(tier)] for tier in tiers])
    cumulative = np.cumsum(weights / weights.sum())
    ordered = curriculum_streams if split == "train" else 0

    def make(i: int, rng: np.random.Generator) -> streams_lib.Stream:
        place = (i % ordered + 0.5) / ordered if ordered else rng.random()
        tier = tiers[min(int(np.searchsorted(cumulative, place)), len(tiers) - 1)]
        pool = pools[tier]
        chosen = i if split == "heldout" else int(rng.integers(len(pool)))
        chemistry = pool[chosen % len(pool)]
        drawn = [draw_trial(rng, chemistry, rules) for _ in range(trials)]
        return _stream(f"{split}-{i}", chemistry, drawn, rules)

    return make


def streams_from_file(
    split: SplitName,
    *,
    episode_path: str | pathlib.Path,
    split_path: str | pathlib.Path | None,
    trials: int,
    rules: game.Rules,
) -> MakeStream:
    """Streams of recorded episodes: the first `trials` trials of each, in the split's order.

    Stream i is the i-th training (or held-out) episode, beginning again after the last. Without a
    split it is the i-th of the file. The info of a stream is {edges, chemistry, episode: its id}.

    Raises:
      ValueError: a malformed file, too few trials in an episode, or items that the rules do not
        have.
    """
    recorded = episodes.read_episodes(episode_path)
    if split_path is None:
        ids = tuple(recorded)
    else:
        chosen = episodes.read_split(split_path, recorded)
        ids = chosen.order if split == "train" else chosen.eval
    if not ids:
        where = episode_path if split_path is None else (
            f"{split_path}: {'order' if split == 'train' else 'eval'}")
        raise ValueError(f"{where} is empty; name at least one episode")
    for i in ids:
        _check_episode(recorded[i], trials, rules, episode_path)

    def make(i: int, rng: np.random.Generator) -> streams_lib.Stream:
        del rng  # Nothing is drawn.
        episode = recorded[ids[i % len(ids)]]
        name = f"{split}-{i}-episode{episode.id}"
        stream = _stream(name, episode.chemistry, episode.trials[:trials], rules)
        info = {**stream.info, "episode": episode.id, "pass": i // len(ids)}
        return dataclasses.replace(stream, info=info)

    return make


def draw_trial(
    rng: np.random.Generator, chemistry: chemistry_lib.Chemistry, rules: game.Rules
) -> game.Trial:
    """A trial under the rules, drawn again until its oracle reaches `rules.min_oracle`.

    Raises:
      ValueError: no such trial turned up.
    """
    for _ in range(_MAX_DRAWS):
        stones = tuple(rng.integers(graphs.CORNERS, size=rules.stones).tolist())
        if rules.supply == "every_colour":
            per_colour = rules.potions // graphs.POTIONS
            potions = tuple(p for p in chemistry.latent_potions for _ in range(per_colour))
        else:
            potions = tuple(rng.integers(graphs.POTIONS, size=rules.potions).tolist())
        trial = game.Trial(stones, potions)
        if not rules.min_oracle or oracle.best_score(chemistry, trial, rules) >= rules.min_oracle:
            return trial
    raise ValueError(
        f"none of {_MAX_DRAWS} trials reached min_oracle {rules.min_oracle} under {rules}; lower "
        "min_oracle, or allow more stones, potions or steps"
    )


def _stream(
    name: str,
    chemistry: chemistry_lib.Chemistry,
    trials: Sequence[game.Trial],
    rules: game.Rules,
) -> streams_lib.Stream:
    tasks = tuple(
        streams_lib.Task(
            id=f"{name}/trial{t}",
            payload={
                "chemistry": chemistry,
                "trial": trial,
                "oracle": oracle.best_score(chemistry, trial, rules),
            },
        )
        for t, trial in enumerate(trials)
    )
    return streams_lib.Stream(name, tasks, {"edges": chemistry.n_edges, "chemistry": chemistry.id})


@functools.lru_cache(maxsize=16)
def _pool(
    edges: int, split: SplitName, heldout_fraction: float, split_seed: int, hold_out: HoldOut
) -> tuple[chemistry_lib.Chemistry, ...]:
    """The chemistries of one tier on one side of the split."""
    if split not in ("train", "heldout"):
        raise ValueError(f"split is {split!r}; it must be train or heldout")
    if hold_out not in ("chemistries", "graphs"):
        raise ValueError(f"hold_out is {hold_out!r}; it must be chemistries or graphs")
    tier = [index for index, graph in enumerate(graphs.GRAPHS) if graph.n_edges == edges]
    shape = (len(tier), len(chemistry_lib.POTION_MAPS), len(chemistry_lib.STONE_MAPS))
    total = len(tier) if hold_out == "graphs" else int(np.prod(shape))
    held_out = round(heldout_fraction * total)
    if not 0 < held_out < total:
        raise ValueError(
            f"heldout_fraction {heldout_fraction} leaves {held_out} of {total} {hold_out} with "
            f"{edges} edges held out; both sides need some" + (
                f": leave {edges} out of edges, or hold out chemistries" if total == 1 else "")
        )
    rng = np.random.default_rng((split_seed, edges))
    order = rng.permutation(total)
    side = order[:held_out] if split == "heldout" else order[held_out:]
    if hold_out == "graphs":
        of_graphs = np.arange(np.prod(shape)).reshape(len(tier), -1)[side]
        side = rng.permutation(of_graphs.ravel())  # The first held-out streams mix the graphs.
    return tuple(
        chemistry_lib.Chemistry(
            *chemistry_lib.POTION_MAPS[int(p)], chemistry_lib.STONE_MAPS[int(s)], tier[int(g)])
        for g, p, s in zip(*np.unravel_index(side, shape), strict=True)
    )


def _check_episode(
    episode: episodes.Episode, trials: int, rules: game.Rules, path: str | pathlib.Path
) -> None:
    where = f"{path}, episode {episode.id}"
    if len(episode.trials) < trials:
        raise ValueError(f"{where}: {len(episode.trials)} trials, but streams need {trials}")
    if rules.supply != "random" or rules.min_oracle:
        raise ValueError(f"{path}: recorded trials need supply='random' and min_oracle=0")
    for t, trial in enumerate(episode.trials[:trials]):
        items = (len(trial.stones), len(trial.potions))
        if items != (rules.stones, rules.potions):
            raise ValueError(
                f"{where}, trial {t}: {items[0]} stones and {items[1]} potions, but the rules have "
                f"{rules.stones} and {rules.potions}"
            )
