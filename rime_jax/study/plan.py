"""The study as one table: settings, their warm starts and seeds, and the cells that each one has.

A cell is one experiment, with option changes where it is an ablation; a run is a cell with a warm
start and a seed, in OUT/SETTING-WARM/NAME_seedN. All runs of a setting are evaluated on the same
held-out chemistries.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from rime_jax import experiment

_EXPERIMENTS = "experiments/alchemy"
SIZE = "tiny"
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One experiment of the study.

    Attributes:
      name: of its runs, without the size.
      title: in tables.
      file: the experiment, if it is not that of the name.
      changes: `OPTION=VALUE` over the experiment's own.
      beside: the cell that its differences are taken to, run by run.
      on_streams: it trains on other streams, so that it is evaluated on those of `rime` apart.
    """

    name: str
    title: str
    file: str = ""
    changes: tuple[str, ...] = ()
    beside: str = "rime"
    on_streams: bool = False

    def source(self, changes: Sequence[str] = ()) -> str:
        """What a sweep is given, in a setting of these changes; the cell's own go before them."""
        own = (f"name={self.run}", *self.changes) if self.changes else ()
        return ",".join([f"{_EXPERIMENTS}/{self.file or self.name}.py:{SIZE}", *changes, *own])

    @property
    def run(self) -> str:
        """The name of its runs, without their seed."""
        return experiment.named(self.name, SIZE)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One game with one kind of warm start.

    Attributes:
      title, says: for the page.
      warm_starts: name → options of rime_jax.warm_start; None: the model that comes with rime_jax.
      rounds: cells in the order in which they are run, those that matter most first.
      changes: `OPTION=VALUE` for all its warm starts, runs and evaluations.
      swaps: cells of which each one's actor is evaluated with each other one's writer.
      goes_on_from: name → the warm start (of any setting) that it teaches further, for those that
        do not begin anew.
    """

    name: str
    title: str
    says: str
    warm_starts: Mapping[str, tuple[str, ...] | None]
    rounds: tuple[tuple[str, ...], ...]
    changes: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    goes_on_from: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(cell for cells in self.rounds for cell in cells)


MAIN = ("rime", "writer_untrained", "exploration_off", "actor_only")
_CREDIT = ("writer_format", "cod", "skillrise")
_SHARING = ("branch_point", "co_train_continued", "decoupled", "frozen_writer")
_ABLATIONS = ("malformed_zero", "kl_0_01", "group_8")

CELLS: dict[str, Cell] = {cell.name: cell for cell in (
    Cell("rime", "RIME"),
    Cell("writer_untrained", "writer untrained"),
    Cell("exploration_off", "exploration off"),
    Cell("actor_only", "actor only (multi-turn RL)"),
    Cell("writer_format", "writer: format reward only"),
    Cell("cod", "CoD credit"),
    Cell("skillrise", "SkillRise credit"),
    Cell("single_task", "single task", on_streams=True),
    Cell("branch_point", "branch point (60 iterations)"),
    Cell("co_train_continued", "from there: co-train continued"),
    Cell("decoupled", "from there: decoupled", beside="co_train_continued"),
    Cell("frozen_writer", "from there: frozen writer", beside="co_train_continued"),
    Cell("malformed_zero", "malformed memories earn 0 (the post)", "rime",
         ("reward.malformed=zero",)),
    Cell("kl_0_01", "KL to the warm start, weight .01", "rime", ("learner.kl_coef=0.01",)),
    # The setting's graphs come in tiers.
    Cell("shuffled", "graphs in random order (RIME here: a curriculum)", "rime",
         ("env.order=shuffled",)),
    # As many rollouts in an iteration.
    Cell("group_8", "8 streams × 8 siblings (RIME here: 4 × 16)", "rime",
         ("rollout.group_size=8", "rollout.streams_per_step=8")),
)}

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in (
    Setting(
        "eased", "Eased",
        "Values are shown when a stone is banked, every potion is there, 2 stones, 6 steps. Of its "
        "memories the warm start's writer was shown a quarter that keep what was known.",
        {"w0": None, "w1": ("seed=1",)},
        (MAIN, _CREDIT, ("single_task",), _SHARING, _ABLATIONS), swaps=MAIN),
    Setting(
        "weak_writer", "Weak writer",
        "The same game; the warm start's writer was shown a tenth of memories that keep what was "
        "known, and 8 of 10 that hold the last task alone.",
        {name: (f"seed={seed}", "warm_start.writer_keeps=0.1", "warm_start.writer_last=0.8")
         for name, seed in (("ww0", 10), ("ww1", 11))},
        (MAIN,), swaps=MAIN),
    Setting(
        "unseen_graphs", "Unseen graphs",
        "As eased, but graphs have bottlenecks (10, 9 and 8 edges), none of the held-out graphs "
        "occurs in training, and a task's 12 potions are drawn at random "
        "(experiments/alchemy/unseen_graphs.py). Training goes from 10 edges to 8. The warm starts "
        "go on from those of the eased setting.",
        {name: (f"seed={seed}", "warm_start.steps=480", "warm_start.lr=2e-3",
                "warm_start.clean_share=0.5")
         for name, seed in (("bn0", 20), ("bn1", 21))},
        # A run is one pass of the curriculum: 100 iterations of 4 streams.
        (MAIN, ("shuffled",)), ("env.edges=10,9,8", "env.hold_out=graphs", "env.supply=random",
                                "rollout.context_tokens=144", "env.pass_streams=400"), swaps=MAIN,
        goes_on_from={"bn0": "w0", "bn1": "w1"}),
)}


# Warm start → the setting that it is made for. No two settings have one of the same name.
MADE_FOR: dict[str, str] = {
    warm: setting.name for setting in SETTINGS.values() for warm in setting.warm_starts}
SHIPPED_WARM_START = "tiny-alchemy-v1"


@dataclasses.dataclass(frozen=True)
class Ordering:
    """A claim of the post: `more` is above `less`.

    Attributes:
      says: in the words of the method.
    """

    more: str
    less: str
    says: str


# The post's own orderings; `warm_start` stands for the untrained policy.
ORDERINGS: Sequence[Ordering] = (
    Ordering("rime", "warm_start", "training helps the untrained policy"),
    Ordering("rime", "writer_untrained", "the writer's training matters"),
    Ordering("rime", "exploration_off", "the exploration reward matters"),
    Ordering("rime", "actor_only", "both together beat multi-turn RL"),
    Ordering("exploration_off", "actor_only", "the writer's training matters without exploration"),
    Ordering("rime", "writer_format", "improvement beats a format reward"),
    Ordering("rime", "skillrise", "improvement beats SkillRise's returns"),
    Ordering("rime", "cod", "improvement beats CoD's returns"),
    Ordering("skillrise", "cod", "SkillRise beats CoD"),
    Ordering("rime", "single_task", "streams beat single tasks"),
    Ordering("rime", "shuffled", "a curriculum beats random order"),
    Ordering("co_train_continued", "branch_point", "training goes on to help"),
    Ordering("co_train_continued", "decoupled", "shared parameters beat separate ones"),
    Ordering("decoupled", "frozen_writer", "a trained writer beats a frozen one"),
)
