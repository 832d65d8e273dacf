"""Compiles a run for a TPU slice on a machine without one, and says whether and how it fits.

    python -m rime_jax.aot --config=experiments/alchemy/rime.py --topology=v5p:4x4x4

The real programs are compiled from shapes alone: the update, the log-probabilities of the
reference, the reshard of the weights to the sampler, and the sampler's prefill and decoding.
`model.path` needs no weights: a directory with a config.json, or one of rime_jax/assets/sizes.

With --search=FILE the update alone is compiled, for the meshes, micro-batches and remats that
divide the slice, and the fastest that fits is printed as a preset (docs/scaling.md).
"""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Sequence

# The programs are compiled for devices that are not here; what is here must not be started.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rime_jax import config as config_lib  # noqa: E402
from rime_jax import experiment  # noqa: E402
from rime_jax.aot import hardware, programs, report, search  # noqa: E402


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    arguments = parser.parse_args(argv)
    _refuse_ignored(parser, arguments)
    with experiment.clean_errors():
        config = experiment.read(arguments.config, arguments.set)
        try:
            slice_ = hardware.describe(arguments.topology)
        except hardware.TopologyError as error:
            sys.exit(f"error: {error}")
        load = _load(arguments, config)
        if arguments.search:
            _search(arguments, config, slice_, load)
            return
        found = programs.make(config, slice_, load)
    if arguments.only:
        found = _chosen(found, arguments.only.split(","))
    rows = report.compile_all(found, slice_, _tell)
    if arguments.json:
        print(json.dumps(report.as_json(rows, slice_), indent=2))
    else:
        print(report.as_text(rows, slice_))
    if not all(row.fits for row in rows):
        sys.exit(1)


def _refuse_ignored(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.search and arguments.only:
        parser.error("--only: --search compiles the update alone")
    for name in ("meshes", "rows", "remats"):
        if getattr(arguments, name) and not arguments.search:
            parser.error(f"--{name}: says what --search tries; give --search too")


def _search(arguments: argparse.Namespace, config, slice_, load) -> None:
    results = search.search(
        config, slice_, load, search.Space(arguments.meshes, arguments.rows, arguments.remats),
        pathlib.Path(arguments.search), _tell)
    if arguments.json:
        print(json.dumps([r.as_json() for r in results], indent=2))
    else:
        print(search.as_text(results), end="\n\n")
        if results[0].row.fits:
            print(search.as_preset(results[0].candidate, arguments.config, arguments.topology))
    if not results[0].row.fits:
        sys.exit("nothing fits; see the column of the verdicts for how much is missing")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _chosen(found: list[programs.Program], names: list[str]) -> list[programs.Program]:
    """Programs by the first words of their names."""
    known = {p.name.split()[0].rstrip(","): p for p in found}
    for name in names:
        if name not in known:
            sys.exit(f"error: --only {name}: the programs here are {', '.join(known)}")
    return [known[name] for name in names]


def _load(arguments: argparse.Namespace, config) -> programs.Load:
    """As told; else upper bounds, every reply being as long as it may be and has room."""
    context = config.rollout.context_tokens
    sequence = arguments.sequence_tokens or context
    if sequence > context:
        raise config_lib.ConfigError(f"--sequence-tokens {sequence}: no conversation is longer than"
                                     f" rollout.context_tokens = {context}")
    asked = config.env.max_steps * config.rollout.act_tokens + config.rollout.write_tokens
    generated = arguments.generated_tokens or min(asked, sequence)
    if generated > sequence:
        raise config_lib.ConfigError(f"--generated-tokens {generated}: a conversation has "
                                     f"{sequence} tokens on the mean (--sequence-tokens)")
    return programs.Load(sequence, generated)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rime_jax.aot", description=__doc__.split("\n\n")[0])
    experiment.add_arguments(parser)
    parser.add_argument("--topology", required=True,
                        help="<generation>:<chips along each axis>: v5e:4x4, v5p:4x4x4, v6e:8x8, …")
    parser.add_argument("--sequence-tokens", type=_positive, metavar="N",
                        help="mean length of a conversation (default: rollout.context_tokens, an "
                             "upper bound)")
    parser.add_argument("--generated-tokens", type=_positive, metavar="N",
                        help="sampled tokens of a conversation (default: the most there can be)")
    parser.add_argument("--only", metavar="NAMES",
                        help="programs to compile, e.g. update,decode (default: all)")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--search", metavar="FILE",
                        help="find the fastest mesh, rows and remat; FILE keeps what was compiled, "
                             "and a stopped search goes on from it")
    parser.add_argument("--meshes", type=_meshes, metavar="LIST",
                        help="with --search: e.g. 1x64x1,4x16x1 (default: all)")
    parser.add_argument("--rows", type=_rows, metavar="LIST",
                        help="with --search: of learner.microbatch_rows (default: 1, 2 and 4 a "
                             "device)")
    parser.add_argument("--remats", type=lambda text: text.split(","), metavar="LIST",
                        help="with --search: of model.remat (default: all)")
    return parser


def _meshes(text: str) -> list[tuple[int, int, int]]:
    """`1x64x1,4x16x1`: (data, fsdp, tensor) each."""
    sizes = [[_positive(n) for n in mesh.split("x")] for mesh in text.split(",")]
    if any(len(mesh) != 3 for mesh in sizes):
        raise argparse.ArgumentTypeError(f"{text}: write data x fsdp x tensor, e.g. 1x64x1,4x16x1")
    return [(data, fsdp, tensor) for data, fsdp, tensor in sizes]


def _rows(text: str) -> list[int]:
    return [_positive(n) for n in text.split(",")]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


if __name__ == "__main__":
    main()
