"""Streams of repair tasks: segments of one repository, easy to hard, never the same bug twice."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rime_jax import streams as streams_lib
from rime_jax.envs.codebase import tasks as tasks_lib

# Share of the tasks of a strategy that the untrained model of the study solves (RIME, SWE-smith
# under a 40-turn limit); another model has others.
PASS_RATES: Mapping[str, float] = {
    "class_rm_base": 0.75, "ctrl_shuffle": 0.42, "func_basic": 0.40, "op_swap": 0.33,
    "op_change": 0.32, "op_change_const": 0.30, "ctrl_invert_if": 0.23, "pr": 0.17,
    "combine_file": 0.16, "remove_assign": 0.13, "remove_cond": 0.11, "class_rm_funcs": 0.11,
    "lm_rewrite": 0.08, "remove_loop": 0.04, "combine_module": 0.01, "remove_wrapper": 0.0,
}
UNMEASURED = 0.15
_EASY, _MEDIUM = 0.25, 0.10
LEVELS = ("easy", "medium", "hard")

# Repositories of the benchmark: its instances are for evaluation alone.
HELD_OUT = frozenset(("tenacity", "tablib"))
_CANARY = "must never appear in training corpora"

# Pairs are drawn among so many repositories with the most segments left.
_TOP = 5
# A function is corrupted at most so often in all streams.
_TIMES = 2

MakeStream = Callable[[int, np.random.Generator], streams_lib.Stream]


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a stream has to know of a task.

    Attributes:
      functions: what the bug is in: pairs of file and name, as far as known.
    """

    instance_id: str
    repository: str
    strategy: str
    functions: frozenset[tuple[str, str]] = frozenset()


def entry(task: tasks_lib.CodeTask) -> Entry:
    return Entry(task.instance_id, task.repository, strategy_name(task.strategy),
                 tasks_lib.changed_functions(task.setup_patch))


def strategy_name(name: str) -> str:
    """The name in `PASS_RATES`: rows write `func_pm_op_swap` and `pr_123`."""
    name = name.removeprefix("func_pm_")
    return "pr" if name.startswith("pr_") else name


def level(strategy: str, rates: Mapping[str, float] = PASS_RATES) -> str:
    """`easy`, `medium` or `hard`."""
    rate = rates.get(strategy, UNMEASURED)
    return "easy" if rate >= _EASY else "medium" if rate >= _MEDIUM else "hard"


@dataclasses.dataclass(frozen=True)
class Shape:
    """What streams look like.

    Attributes:
      segments: tasks of each segment; each segment is of another repository.
      curriculum: tasks of a segment go from easy to hard; otherwise in random order.
    """

    segments: tuple[int, ...]
    curriculum: bool = True

    @classmethod
    def parse(cls, text: str, curriculum: bool = True) -> "Shape":
        """`6+6` → segments (6, 6).

        Raises:
          ValueError: the text is no such sum.
        """
        parts = text.split("+")
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise ValueError(f"{text!r} is no shape of streams; write the tasks of each segment, "
                             "as in 6+6, 3+3, 9+9+9 or 1")
        return cls(tuple(int(part) for part in parts), curriculum)


# Name of a tier → shares of easy, medium and hard tasks in a segment.
_TIERS = {"mixed": (1, 1, 1), "easy_mid": (1, 1, 0), "pure_easy": (1, 0, 0), "rest": None}


def plan(
    entries: Iterable[Entry], shape: Shape, seed: int, rates: Mapping[str, float] = PASS_RATES,
    held_out: frozenset[str] = HELD_OUT,
) -> list[streams_lib.Stream]:
    """As many streams as the tasks allow; a function of its arguments alone.

    Segments with a third of each level are made first, for hard tasks are few, then those of easy
    and medium ones, then easy ones, then segments of what is left. Streams pair segments of one
    tier; their repositories are drawn among the five with the most segments left. The payload of a
    task is its instance id, `info` holds `tier` and `repositories`.

    Raises:
      ValueError: not a single stream can be made.
    """
    rng = np.random.default_rng((seed, *shape.segments))
    usable = [e for e in entries if not _is_held_out(e.repository, held_out)]
    sizes = set(shape.segments)
    if len(sizes) > 1:
        raise ValueError(f"segments of different lengths {shape.segments}: make them equal")
    size = sizes.pop()
    pools = _Pools(usable, rates, rng)
    found = []
    for tier, shares in _TIERS.items():
        # Shorter segments cannot have a task of each level, which would make them of another tier.
        if shares is None or size >= sum(shares):
            segments = pools.segments(size, None if shares is None else _counts(size, shares))
            found += _join(segments, len(shape.segments), tier, rng)
    if not found:
        raise ValueError(
            f"the tasks allow no stream of shape {'+'.join(map(str, shape.segments))}: it needs "
            f"{len(shape.segments)} repositories with {size} tasks each (given: "
            f"{dict(collections.Counter(e.repository for e in usable))})")
    by_id = {e.instance_id: e for e in usable}
    return [_stream(i, tier, parts, by_id, shape, rates, rng)
            for i, (tier, parts) in enumerate(found)]


def make_streams(planned: Sequence[streams_lib.Stream]) -> MakeStream:
    """For `streams.StreamSource`: every stream once, in an order of its own for each pass."""
    def make(i: int, rng: np.random.Generator) -> streams_lib.Stream:
        del rng  # The order of a pass belongs to all of its streams.
        turn, place = divmod(i, len(planned))
        order = np.random.default_rng((turn, len(planned))).permutation(len(planned))
        stream = planned[order[place]]
        return dataclasses.replace(stream, info={**stream.info, "pass": turn})

    return make


def problems(
    planned: Sequence[streams_lib.Stream], entries: Mapping[str, Entry], shape: Shape,
    rates: Mapping[str, float] = PASS_RATES, held_out: frozenset[str] = HELD_OUT,
) -> list[str]:
    """What is wrong with streams, in words; empty where every constraint holds.

    No task twice anywhere; no function twice in a segment, nor more than twice in all, nor twice
    with one strategy; segments of one repository and of the right length, neighbours of different
    ones; easy to hard under a curriculum; no repository of the benchmark.
    """
    found = []
    seen: set[str] = set()
    touched: dict[tuple, list[str]] = collections.defaultdict(list)
    for stream in planned:
        segments = collections.defaultdict(list)
        order = [task.segment for task in stream.tasks]
        if order != sorted(order):
            found.append(f"{stream.id}: the segments are mixed up")
        for task in stream.tasks:
            if task.payload in seen:
                found.append(f"{stream.id}: {task.payload} stands in two places")
            seen.add(task.payload)
            if task.payload not in entries:
                found.append(f"{stream.id}: {task.payload} is unknown")
                continue
            segments[task.segment].append(entries[task.payload])
        found += _stream_problems(stream.id, segments, shape, rates, held_out)
        for own in segments.values():
            for e in own:
                for function in e.functions:
                    touched[e.repository, *function].append(e.strategy)
    for function, strategies in touched.items():
        if len(strategies) > _TIMES or len(set(strategies)) < len(strategies):
            found.append(f"{' '.join(function)} is corrupted by {sorted(strategies)}")
    return found


def _stream_problems(
    name: str, segments: Mapping[int, list[Entry]], shape: Shape, rates: Mapping[str, float],
    held_out: frozenset[str],
) -> list[str]:
    found = []
    lengths = tuple(len(segments[i]) for i in sorted(segments))
    if lengths != shape.segments:
        found.append(f"{name}: segments of {lengths} tasks instead of {shape.segments}")
    names = []
    for own in segments.values():
        repositories = {e.repository for e in own}
        names.append(repositories)
        if len(repositories) > 1:
            found.append(f"{name}: one segment has tasks of {sorted(repositories)}")
        found += [f"{name}: {r} is held out" for r in repositories if _is_held_out(r, held_out)]
        functions = collections.Counter(f for e in own for f in e.functions)
        found += [f"{name}: {f} is corrupted {n} times in a segment"
                  for f, n in functions.items() if n > 1]
        ranks = [LEVELS.index(level(e.strategy, rates)) for e in own]
        if shape.curriculum and ranks != sorted(ranks):
            found.append(f"{name}: a segment does not go from easy to hard")
    if any(a == b for a, b in zip(names, names[1:], strict=False)):
        found.append(f"{name}: neighbouring segments are of one repository")
    return found


class _Pools:
    """The tasks that are left, by repository and level; keeps count of corrupted functions."""

    def __init__(
        self, entries: Sequence[Entry], rates: Mapping[str, float], rng: np.random.Generator
    ):
        self._left: dict[str, dict[str, list[Entry]]] = {}
        self._touched: dict[tuple, list[str]] = collections.defaultdict(list)
        order = sorted(entries, key=lambda e: e.instance_id)
        for i in rng.permutation(len(order)):
            e = order[i]
            own = self._left.setdefault(e.repository, {name: [] for name in LEVELS})
            own[level(e.strategy, rates)].append(e)

    def segments(self, size: int, counts: tuple[int, ...] | None) -> dict[str, list[list[Entry]]]:
        """Repository → segments of `counts` tasks of each level (None: of any), while they last."""
        made = collections.defaultdict(list)
        for repository in sorted(self._left):
            while segment := self._segment(repository, size, counts):
                made[repository].append(segment)
        return made

    def _segment(
        self, repository: str, size: int, counts: tuple[int, ...] | None
    ) -> list[Entry] | None:
        own = self._left[repository]
        wanted = ([(name, n) for name, n in zip(LEVELS, counts, strict=True)] if counts
                  else [(None, size)])
        chosen: list[Entry] = []
        for name, n in wanted:
            candidates = own[name] if name else [e for k in LEVELS for e in own[k]]
            for e in candidates:
                if n == 0:
                    break
                if self._may_join(e, chosen):
                    chosen.append(e)
                    n -= 1
            if n:
                return None
        for e in chosen:
            for function in e.functions:
                self._touched[e.repository, *function].append(e.strategy)
            for pool in own.values():
                if e in pool:
                    pool.remove(e)
        return chosen

    def _may_join(self, e: Entry, chosen: Sequence[Entry]) -> bool:
        if any(e.functions & other.functions for other in chosen):
            return False
        earlier = [self._touched[e.repository, *function] for function in e.functions]
        return all(len(old) < _TIMES and e.strategy not in old for old in earlier)


def _counts(size: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Tasks of each level; what does not divide evenly goes to the easier ones."""
    part, rest = divmod(size, sum(shares))
    counts = [share * part for share in shares]
    for i in range(rest):
        counts[[j for j, share in enumerate(shares) if share][i]] += 1
    return tuple(counts)


def _join(
    segments: Mapping[str, list[list[Entry]]], n: int, tier: str, rng: np.random.Generator
) -> list[tuple[str, list[list[Entry]]]]:
    """Streams of n segments of different repositories."""
    left = {name: list(own) for name, own in segments.items() if own}
    found = []
    while len(left) >= n:
        top = sorted(left, key=lambda name: (-len(left[name]), name))[:max(_TOP, n)]
        chosen = [top[i] for i in rng.permutation(len(top))[:n]]
        found.append((tier, [left[name].pop() for name in chosen]))
        left = {name: own for name, own in left.items() if own}
    return found


def _stream(
    i: int, tier: str, parts: Sequence[Sequence[Entry]], by_id: Mapping[str, Entry], shape: Shape,
    rates: Mapping[str, float], rng: np.random.Generator,
) -> streams_lib.Stream:
    tasks = []
    for segment, own in enumerate(parts):
        if shape.curriculum:
            ordered = sorted(own, key=lambda e: (-rates.get(e.strategy, UNMEASURED), e.instance_id))
        else:
            ordered = [own[j] for j in rng.permutation(len(own))]
        tasks += [streams_lib.Task(e.instance_id, e.instance_id, segment) for e in ordered]
    info: dict[str, Any] = {"tier": tier, "repositories": [own[0].repository for own in parts]}
    return streams_lib.Stream(f"codebase-{i}", tuple(tasks), info)


def _is_held_out(repository: str, held_out: frozenset[str]) -> bool:
    # `owner/name`, `owner__name.commit`, or the name alone.
    name = repository.split("/")[-1].split("__")[-1].split(".")[0]
    return name in held_out


def check_trainable(tasks: Iterable[tasks_lib.CodeTask]) -> None:
    """Refuses the benchmark's own instances.

    Raises:
      ValueError: one is among the tasks.
    """
    for task in tasks:
        texts = (task.statement, task.setup_patch)
        if _is_held_out(task.repository, HELD_OUT) or any(_CANARY in text for text in texts):
            raise ValueError(
                f"{task.instance_id} belongs to the benchmark (repositories {sorted(HELD_OUT)}), "
                "which is for evaluation only; take it out of the training tasks")
