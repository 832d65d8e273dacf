"""Compiles a run for a TPU slice on a machine without one, and says whether and how it fits.

    python -m rime_jax.aot --config=experiments/alchemy/rime.py --topology=v5p:4x4x4

The real programs are compiled from shapes alone: the update, the log-probabilities of the
reference, the reshard of the weights to the sampler, and the sampler's prefill and decoding.
`model.path` needs no weights: a directory with a config.json, or one of rime_jax/assets/sizes.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence

# The programs are compiled for devices that are not here; what is here must not be started.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rime_jax import experiment  # noqa: E402
from rime_jax.aot import hardware, programs, report  # noqa: E402


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    with experiment.clean_errors():
        config = experiment.read(arguments.config, arguments.set)
        try:
            slice_ = hardware.describe(arguments.topology)
        except hardware.TopologyError as error:
            sys.exit(f"error: {error}")
        load = programs.Load(
            arguments.sequence_tokens or config.rollout.context_tokens,
            arguments.generated_tokens or _generated(config))
        found = programs.make(config, slice_, load)
    if arguments.only:
        found = _chosen(found, arguments.only.split(","))
    rows = report.compile_all(found, slice_, lambda line: print(line, file=sys.stderr))
    if arguments.json:
        print(json.dumps(report.as_json(rows, slice_), indent=2))
    else:
        print(report.as_text(rows, slice_))
    if not all(row.fits for row in rows):
        sys.exit(1)


def _chosen(found: list[programs.Program], names: list[str]) -> list[programs.Program]:
    """Programs by the first words of their names."""
    known = {p.name.split()[0].rstrip(","): p for p in found}
    for name in names:
        if name not in known:
            sys.exit(f"error: --only {name}: the programs here are {', '.join(known)}")
    return [known[name] for name in names]


def _generated(config) -> int:
    """An upper bound: every reply as long as it may be, as long as the context has room."""
    asked = config.env.max_steps * config.rollout.act_tokens + config.rollout.write_tokens
    return min(asked, config.rollout.context_tokens)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rime_jax.aot", description=__doc__.split("\n\n")[0])
    experiment.add_arguments(parser)
    parser.add_argument("--topology", required=True,
                        help="<generation>:<chips along each axis>: v5e:4x4, v5p:4x4x4, v6e:8x8, …")
    parser.add_argument("--sequence-tokens", type=int, metavar="N",
                        help="mean length of a conversation (default: rollout.context_tokens, an "
                             "upper bound)")
    parser.add_argument("--generated-tokens", type=int, metavar="N",
                        help="sampled tokens of a conversation (default: the most there can be)")
    parser.add_argument("--only", metavar="NAMES",
                        help="programs to compile, e.g. update,decode (default: all)")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    return parser


if __name__ == "__main__":
    main()
