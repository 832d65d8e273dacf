"""Plays the held-out streams under each condition: the memory as written, blanked, swapped, …"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from rime_jax import config as config_lib
from rime_jax import distributed, parts, streams
from rime_jax.evaluation import corruption
from rime_jax.evaluation.journal import Journal, Kept, Row
from rime_jax.rollout.collect import collect
from rime_jax.rollout.context import Context, GivenMemory, Place, Speaker

# Condition → the label of its randomness. A corrupted memory meets that of the intact one, so that
# nothing but the memory differs.
_LABELS = {"with_memory": 0, "stateless": 1, "true_memory": 2, "swapped": 3, "corrupted": 0}


@dataclasses.dataclass(frozen=True)
class Played:
    """Performance of one policy, nan where a task has no scale, was lost or was not played.

    Attributes:
      scaffold: one of `eval.scaffolds`.
      with_memory, stateless, true_memory, swapped: [S streams, R rollouts, T positions].
      corrupted: [S, R, T], from the task on that read the false fact.
      corrected, still_false: [S, R, T], 1 or 0: what the memory after a task says instead of the
        false fact, the truth or the falsehood; neither where it says nothing about it.
      facts: [S, R] share of correct facts in the last memory; nan where the domain has none.
      lost: rollouts that an infrastructure failure ended.
    """

    scaffold: str
    with_memory: np.ndarray
    stateless: np.ndarray
    true_memory: np.ndarray
    swapped: np.ndarray
    corrupted: np.ndarray
    corrected: np.ndarray
    still_false: np.ndarray
    facts: np.ndarray
    lost: int


async def play(
    built: parts.Parts, rollouts: int, stop: distributed.Stop, scaffold: str,
    writer: Speaker | None, journal: Journal,
) -> Played:
    """Plays the held-out streams; see `protocols.play`."""
    game = _Game(built, scaffold, writer, rollouts, held_out_streams(built),
                 stop.processes.own(built.config.eval.streams), journal)
    lost = await stop.run(_play_own(game, ["with_memory", *_beside(built, scaffold)]))
    if behind := _behind(built, scaffold):
        # A process may have to read a memory that another one's policy wrote.
        for memories in stop.processes.gather(game.own_memories()):
            game.memories.update(memories)
        lost += await stop.run(_play_own(game, behind))
    shares = stop.processes.gather((game.arrays(), lost))

    def whole(name: str) -> np.ndarray:
        array = shares[0][0][name]
        for i, (share, _) in enumerate(shares):
            array[i :: len(shares)] = share[name][i :: len(shares)]
        return array

    return Played(scaffold, **{name: whole(name) for name in shares[0][0]},
                  lost=sum(lost for _, lost in shares))


async def _play_own(game: "_Game", conditions: Sequence[str]) -> int:
    """Plays the streams of one process, all conditions side by side.

    Returns:
      The number of rollouts that an infrastructure failure ended.
    """
    async def one(condition: str) -> int:
        context, kept = game.condition(condition)
        played = await collect(
            context, [game.streams[i] for i in game.mine], game.rollouts,
            (game.built.config.eval.seed, _LABELS[condition]), game.mine, kept)
        return sum(r.failure is not None for r in played)

    return sum(await asyncio.gather(*map(one, conditions)))


class _Game:
    """One policy in one scaffold, and the tasks that it has played.

    Attributes:
      memories: (stream, rollout, position) → the memory that an intact rollout read there, of all
        processes.
    """

    def __init__(
        self, built: parts.Parts, scaffold: str, writer: Speaker | None, rollouts: int,
        held_out: list[streams.Stream], mine: Sequence[int], journal: Journal,
    ):
        self.built, self.rollouts, self.streams, self.mine = built, rollouts, held_out, mine
        self.memories: dict[tuple[int, int, int], str] = {}
        self._scaffold, self._writer, self._journal = scaffold, writer, journal
        self._kept: dict[str, Kept] = {}
        self._corruptions: dict[tuple[int, int], tuple[int, corruption.Corruption]] = {}

    def condition(self, name: str) -> tuple[Context, Kept]:
        """What the rollouts of a condition share, and where they begin."""
        given: GivenMemory | None = None
        begins = None
        if name == "stateless" or (name == "with_memory" and self._scaffold == "stateless"):
            given = nothing
        elif name == "true_memory":
            given = _of_task(self.built.domain.true_memory)
        elif name == "swapped":
            partners = self._partners()
            begins = dict.fromkeys(partners, (0, ""))
            given = _Swapped(self.memories, partners)
        elif name == "corrupted":
            self._corruptions = self._corrupt()
            begins = {at: (position, made.text)
                      for at, (position, made) in self._corruptions.items()}
        context = self.built.context(
            self.built.config.eval.temperature, given_memory=given,
            scaffold="in_context" if self._scaffold == "in_context" else "act_write",
            writer=self._writer)
        kept = Kept(self._journal, f"{self._scaffold}/{name}", given, begins)
        self._kept[name] = kept
        return context, kept

    def own_memories(self) -> dict[tuple[int, int, int], str]:
        return {(row.group, row.sibling, row.position): row.memory_before
                for row in self._rows("with_memory")}

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields of `Played` but `lost`; nan for the streams of other processes."""
        shape = (len(self.streams), self.rollouts, max(len(s.tasks) for s in self.streams))
        names = (*_LABELS, "corrected", "still_false")
        found = {name: np.full(shape, np.nan) for name in names}
        for name in _LABELS:
            for row in self._rows(name):
                if row.performance is not None:
                    found[name][row.group, row.sibling, row.position] = row.performance
        fmt = self.built.domain.memory_format
        for row in self._rows("corrupted"):
            _, made = self._corruptions[row.group, row.sibling]
            fate = corruption.fate(made, row.memory_after, fmt)
            at = row.group, row.sibling, row.position
            found["corrected"][at] = fate == "corrected"
            found["still_false"][at] = fate == "false"
        return found | {"facts": self._facts(shape[:2])}

    def _rows(self, condition: str) -> Iterator[Row]:
        """What was played of a condition, each rollout in order."""
        if condition in self._kept:
            for s in self.mine:
                for r in range(self.rollouts):
                    yield from self._kept[condition].rows(self.streams[s], s, r)

    def _partners(self) -> dict[tuple[int, int], int]:
        """(stream, rollout) → the next stream of another chemistry that has all its memories."""
        labels, n = clusters(self.streams), len(self.streams)
        found = {}
        for s in self.mine:
            for r in range(self.rollouts):
                for other in ((s + k) % n for k in range(1, n)):
                    tasks = range(len(self.streams[s].tasks))
                    if labels[other] != labels[s] and all(
                            (other, r, t) in self.memories for t in tasks):
                        found[s, r] = other
                        break
        return found

    def _corrupt(self) -> dict[tuple[int, int], tuple[int, corruption.Corruption]]:
        """(stream, rollout) → the position from which on a fact is false, and the false memory.

        Positions are drawn; one where no fact can be turned is drawn again.
        """
        domain, found = self.built.domain, {}
        for s in self.mine:
            for r in range(self.rollouts):
                rng = np.random.default_rng((self.built.config.eval.seed, s, r))
                for t in 1 + rng.permutation(max(len(self.streams[s].tasks) - 1, 0)):
                    text = self.memories.get((s, r, int(t)))
                    made = text and corruption.corrupt(
                        text, domain.memory_format, domain.false_words(text), rng)
                    if made:
                        found[s, r] = int(t), made
                        break
        return found

    def _facts(self, shape: tuple[int, int]) -> np.ndarray:
        array = np.full(shape, np.nan)
        domain = self.built.domain
        if domain.memory_truth is not None and self._scaffold == "act_write":
            for row in self._rows("with_memory"):
                # That of the last task stays.
                items, _ = domain.memory_format.parse_items(row.memory_after)
                task = self.streams[row.group].tasks[row.position]
                array[row.group, row.sibling] = domain.memory_truth(task, items)["correct_facts"]
        return array


@dataclasses.dataclass(frozen=True)
class _Swapped:
    """Gives each task the memory that the same task of another stream read."""

    memories: Mapping[tuple[int, int, int], str]
    partners: Mapping[tuple[int, int], int]

    def __call__(self, task: streams.Task, place: Place) -> str:
        partner = self.partners[place.group, place.sibling]
        return self.memories[partner, place.sibling, place.position]


def nothing(task: streams.Task, place: Place) -> str:
    """The memory of a stateless rollout."""
    return ""


def _of_task(memory_of: Callable[[streams.Task], str]) -> GivenMemory:
    return lambda task, place: memory_of(task)


def tasks(built: parts.Parts, scaffold: str) -> int:
    """How many tasks are played at most; corrupted rollouts begin later than others."""
    conditions = 1 + len(_beside(built, scaffold)) + len(_behind(built, scaffold))
    per_rollout = sum(len(stream.tasks) for stream in held_out_streams(built))
    return conditions * built.config.eval.rollouts * per_rollout


def _beside(built: parts.Parts, scaffold: str) -> list[str]:
    """The conditions that need no memory of the intact one."""
    found = ["stateless"] if "blanked" in built.config.eval.interventions else []
    if scaffold == "act_write" and built.domain.true_memory is not None:
        found.append("true_memory")
    return found


def _behind(built: parts.Parts, scaffold: str) -> list[str]:
    """The conditions that begin from written memories."""
    if scaffold != "act_write":
        return []
    return [name for name in ("swapped", "corrupted")
            if name in built.config.eval.interventions]


def held_out_streams(built: parts.Parts) -> list[streams.Stream]:
    """The evaluation's streams, the same for every policy and run with this config.

    Raises:
      ConfigError: there are not so many different ones.
    """
    config = built.config
    source = streams.StreamSource(built.domain.make_stream("heldout"), config.eval.seed)
    taken = source.take(config.eval.streams)
    # Recorded episodes are different ones even where two are of one chemistry.
    distinct = len({stream.info.get("episode", label)
                    for stream, label in zip(taken, clusters(taken), strict=True)})
    if distinct < len(taken):
        # Streams of one chemistry are no independent observations; the intervals count on that.
        raise config_lib.ConfigError(
            f"eval.streams = {len(taken)}, but only {distinct} of them are of different held-out "
            f"chemistries (codebase: tasks); lower it to {distinct} at most and raise "
            "eval.rollouts instead"
        )
    return taken


def clusters(held_out: Sequence[streams.Stream]) -> list[str]:
    """Of each stream what it shares with those that are no independent observations of it."""
    return [str(stream.info.get("chemistry", stream.id)) for stream in held_out]


def floors(built: parts.Parts) -> dict[str, np.ndarray]:
    """Name → performance [S, 1, T] of the domain's scripted players."""
    seed = built.config.eval.seed
    held_out = held_out_streams(built)
    return {
        name: np.array([player(stream, seed + i) for i, stream in enumerate(held_out)])[:, None]
        for name, player in built.domain.floors.items()
    }
