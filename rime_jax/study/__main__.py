"""Makes the study of docs/study.md, or a part of it; skips what is done already.

    python -m rime_jax.study --dry-run    the exact commands, and what is done

launch/study.sh is this program in the environment that it makes; its --help says what is what.
"""

import argparse
import os
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence

from rime_jax import errors, experiment
from rime_jax.study import page, plan, results, steps, tables
from rime_jax.tracking import metrics


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    todo = list(steps.all_of(_choice(arguments)))
    for i, step in enumerate(todo, 1):
        done = step.makes is not None and step.makes.is_file()
        shown = f"# {i}/{len(todo)} {step.title}"
        if done or arguments.dry_run:
            print(f"{shown}: done, {step.makes}" if done else
                  f"{shown}\n{shlex.join(('python', *step.command))}")
        else:
            print(f"\n{shown}", flush=True)
            _run(step)
    if not arguments.dry_run:
        with experiment.clean_errors():
            summarise(arguments.out)


def summarise(out: pathlib.Path) -> None:
    """Writes and prints the tables of what is under `out`: results.json and study.md there."""
    found, left_out = results.read(out)
    for reason in left_out:
        print(f"left out: {reason}")
    both = results.merged(results.load(out / "results.json"), found)
    results.save(both, out / "results.json")
    beside = tables.reproduction(both, results.load(page.RESULTS))
    text = "\n\n".join([
        *(f"## {name}\n\n{part}" for name, part in page.parts(both).items()
          if part and name != "curves"), f"## beside {page.RESULTS}\n\n{beside}"]) + "\n"
    metrics.write_atomically(out / "study.md", text.encode())
    print(f"\n{text}\nsaved {out}/results.json and study.md")


def _run(step: steps.Step) -> None:
    """Runs a step; ends the program as it ended, unless it has finished."""
    # Of its own session: a Ctrl-C reaches it once, by us.
    process = subprocess.Popen([sys.executable, *step.command], start_new_session=True)

    def tell(*_: object) -> None:
        process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    status = process.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if status != 0:
        say = "the same command goes on" if status == errors.STOPPED else (
            f"this step ended with status {status}; the same command starts with it again")
        print(f"\nStopped at: {step.title}. What is finished is kept; {say}.", file=sys.stderr)
        sys.exit(status if status > 0 else errors.FAILED)


def _choice(arguments: argparse.Namespace) -> steps.Choice:
    if arguments.quick:
        return steps.Choice(arguments.out, ["eased"], plan.MAIN, warm_starts=1, seeds=1,
                            jobs=arguments.jobs)
    return steps.Choice(arguments.out, arguments.settings, arguments.cells, jobs=arguments.jobs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rime_jax.study", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true",
                        help="one seed of the four main cells, eased setting, shipped warm start; "
                             "--settings and --cells mean nothing then")
    parser.add_argument("--settings", type=_names(plan.SETTINGS), default=list(plan.SETTINGS),
                        metavar="NAME,…", help=f"of {', '.join(plan.SETTINGS)} (default: all)")
    parser.add_argument("--cells", type=_names(plan.CELLS), default=list(plan.CELLS),
                        metavar="NAME,…", help=f"of {', '.join(plan.CELLS)} (default: all)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/study"),
                        help="where everything goes (default: runs/study)")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2),
                        metavar="N", help="runs at a time (default: one for two cores)")
    parser.add_argument("--dry-run", action="store_true",
                        help="prints the exact commands, and runs none")
    return parser


def _names(known: Sequence[str] | dict):
    def parse(text: str) -> list[str]:
        wrong = [name for name in text.split(",") if name not in known]
        if wrong:
            raise argparse.ArgumentTypeError(
                f"there is no {', '.join(wrong)}; there are {', '.join(known)}")
        return text.split(",")
    return parse


if __name__ == "__main__":
    main()
