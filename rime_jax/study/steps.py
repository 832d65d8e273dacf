"""The commands that make the study, in order; each is an ordinary program of this repository."""

import dataclasses
import itertools
import pathlib
from collections.abc import Collection, Iterator

from rime_jax.study import plan

_WARM = "experiments/alchemy/models/warm_start.py"
_STREAMS = f"experiments/alchemy/rime.py:{plan.SIZE}"


@dataclasses.dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
      command: arguments of Python, to be run at the root of the repository.
      makes: it is skipped where this file is there; None: it skips by itself what is done.
    """

    title: str
    command: tuple[str, ...]
    makes: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which part of the study.

    Attributes:
      out: where everything goes.
      settings, cells: names in `plan`.
      warm_starts, seeds: at most so many of each setting; None: all.
      jobs: runs at a time.
    """

    out: pathlib.Path
    settings: Collection[str]
    cells: Collection[str]
    warm_starts: int | None = None
    seeds: int | None = None
    jobs: int = 1


def all_of(choice: Choice) -> Iterator[Step]:
    """Warm starts and runs of every setting, round after round, and then the evaluations.

    A round goes through all warm starts before the next begins, so that a study that is broken off
    has whole comparisons.
    """
    chosen = [plan.SETTINGS[name] for name in choice.settings]
    # Two settings may share an earlier warm start.
    yield from dict.fromkeys(
        step for setting in chosen for warm in _warm_starts(setting, choice)
        for step in _warm_start(setting, warm, choice))
    for setting in chosen:
        for cells in setting.rounds:
            own = [plan.CELLS[name] for name in cells if name in choice.cells]
            for warm in _warm_starts(setting, choice) if own else ():
                yield _sweep(setting, warm, own, choice)
    for setting in chosen:
        for warm, seed in itertools.product(
                _warm_starts(setting, choice), setting.seeds[:choice.seeds]):
            yield from _evaluations(setting, warm, seed, choice)


def directory(out: pathlib.Path, setting: str, warm: str) -> pathlib.Path:
    """Where the runs of a setting and a warm start are."""
    return out / f"{setting}-{warm}"


def streams_evaluation(run: pathlib.Path) -> pathlib.Path:
    """The results of a cell that trains on other streams (`Cell.on_streams`)."""
    return run / "eval" / "streams.json"


def swap_evaluation(of: pathlib.Path, actor: str, writer: str, seed: int) -> pathlib.Path:
    """The results of one cell's actor with another's writer."""
    return of / "swaps" / f"{actor}+{writer}_seed{seed}.json"


def _warm_starts(setting: plan.Setting, choice: Choice) -> list[str]:
    return list(setting.warm_starts)[:choice.warm_starts]


def _warm_start(setting: plan.Setting, warm: str, choice: Choice) -> Iterator[Step]:
    """What makes a warm start, and before it the one that it goes on from."""
    options = setting.warm_starts[warm]
    if options is None:
        return
    model, earlier = choice.out / "warm" / warm, setting.goes_on_from.get(warm)
    if earlier:
        before = plan.SETTINGS[plan.MADE_FOR[earlier]]
        yield from _warm_start(before, earlier, choice)
        options = (*options, f"warm_start.initial={_model(before, earlier, choice)}")
    yield Step(f"warm start {warm}",
               ("-m", "rime_jax.warm_start", f"--config={_WARM}", f"--out={model}", "--set",
                *setting.changes, *options), model / "model.safetensors")


def _model(setting: plan.Setting, warm: str, choice: Choice) -> pathlib.Path | str:
    """A warm start as `model.path`."""
    made = setting.warm_starts[warm] is not None
    return choice.out / "warm" / warm if made else plan.SHIPPED_WARM_START


def _sweep(
    setting: plan.Setting, warm: str, cells: list[plan.Cell], choice: Choice
) -> Step:
    made = setting.warm_starts[warm] is not None
    return Step(
        f"{setting.name}, warm start {warm}: {', '.join(cell.name for cell in cells)}",
        ("-m", "rime_jax.sweep", *(cell.source(setting.changes) for cell in cells),
         "--seeds", ",".join(map(str, setting.seeds[:choice.seeds])), f"--jobs={choice.jobs}",
         "--out", str(directory(choice.out, setting.name, warm)),
         *(["--set", f"model.path={_model(setting, warm, choice)}"] if made else [])))


def _evaluations(
    setting: plan.Setting, warm: str, seed: int, choice: Choice
) -> Iterator[Step]:
    place = directory(choice.out, setting.name, warm)
    changes = ["--set", *setting.changes] if setting.changes else []

    def run(cell: str) -> pathlib.Path:
        return place / f"{plan.CELLS[cell].run}_seed{seed}"

    for name in setting.cells:
        if name in choice.cells and plan.CELLS[name].on_streams:
            made = streams_evaluation(run(name))
            yield Step(f"{setting.name}, {warm}: {name}, seed {seed}, on streams",
                       ("-m", "rime_jax.evaluate", f"--config={_STREAMS}",
                        f"--actor={run(name)}", f"--out={made.with_suffix('')}", *changes), made)
    swapped = [name for name in setting.swaps if name in choice.cells]
    for actor, writer in itertools.permutations(swapped, 2):
        made = swap_evaluation(place, actor, writer, seed)
        yield Step(f"{setting.name}, {warm}: {actor} with the writer of {writer}, seed {seed}",
                   ("-m", "rime_jax.evaluate", f"--config={_STREAMS}", f"--actor={run(actor)}",
                    f"--writer={run(writer)}", f"--out={made.with_suffix('')}", *changes), made)
