"""The difference between two results of the same streams, with a paired bootstrap interval.

    python -m rime_jax.evaluation.compare RUN_A/eval/final.json RUN_B/eval/final.json
    python -m rime_jax.evaluation.compare A.json B.json --policies 'step 100' initial

Both files are those that rime_jax.evaluate writes. Streams (with eval.protocol = runs: tasks) that
both have are paired; those of one chemistry are drawn together. Policies are the last of each file
unless named.
"""

import argparse
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rime_jax import config as config_lib
from rime_jax import experiment
from rime_jax.evaluation.numbers import interval
from rime_jax.tracking.values import is_number

_RESAMPLES = 10_000


def compare(
    first: Mapping[str, Any], second: Mapping[str, Any], policies: Sequence[str] = ()
) -> dict[str, tuple[float, float, float]]:
    """Quantity → (mean, low, high) of second - first.

    Args:
      first, second: JSON of `rime_jax.evaluate`.
      policies: of the first and of the second; empty: the last of each.

    Raises:
      ValueError: they are of different settings or streams, or have no such policy.
    """
    for name in ("protocol", "setting", "trials"):
        if first.get(name) != second.get(name):
            raise ValueError(f"the results are of different games: {name} is {first.get(name)!r} "
                             f"in the first and {second.get(name)!r} in the second")
    names = policies or [list(found["policies"])[-1] for found in (first, second)]
    own = [_values(found, name) for found, name in zip((first, second), names, strict=True)]
    labels = dict(zip(first["units"]["names"], first["units"]["clusters"], strict=True))
    paired = [unit for unit in first["units"]["names"] if unit in set(second["units"]["names"])]
    if not paired:
        raise ValueError("the results have no stream in common; evaluate both with the same "
                         "eval.seed, eval.tasks_file and env options")
    found = {}
    for quantity in own[0]:
        if quantity in own[1]:
            a, b = (np.array([values[quantity][unit] for unit in paired], float) for values in own)
            found[quantity] = interval(
                b - a, _RESAMPLES, clusters=[labels[unit] for unit in paired])
    return found


def _values(found: Mapping[str, Any], policy: str) -> dict[str, dict[str, float]]:
    """Quantity → unit → value; null is nan."""
    units = found["units"]
    if policy not in units["values"]:
        raise ValueError(f"there is no policy {policy!r}; there are {list(units['values'])}")
    return {quantity: dict(zip(units["names"],
                               [np.nan if x is None else x for x in own], strict=True))
            for quantity, own in units["values"][policy].items()}


def _read(path: pathlib.Path) -> dict[str, Any]:
    if path.is_dir():
        raise config_lib.ConfigError(f"{path} is a directory; name the JSON of results, which in a "
                                     "run directory is eval/final.json")
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise config_lib.ConfigError(f"{path} cannot be read as results: {error}") from error
    if not isinstance(found, dict) or not _fits(found.get("units"), found.get("policies")):
        raise config_lib.ConfigError(f"{path} does not hold the values of each stream; make it "
                                     "again with rime_jax.evaluate")
    return found


def _fits(units: Any, policies: Any) -> bool:
    """Whether these are units and policies as an evaluation writes them."""
    try:
        names, clusters, values = units["names"], units["clusters"], units["values"]
        return (
            bool(policies) and policies.keys() == values.keys()
            and all(isinstance(x, str) for x in [*names, *clusters])
            and len(names) == len(clusters) == len(set(names))
            and all(len(own) == len(names) and all(x is None or x != x or is_number(x) for x in own)
                    for quantities in values.values() for own in quantities.values()))
    except (LookupError, TypeError, AttributeError):
        return False


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="rime_jax.evaluation.compare", description=__doc__.split("\n\n")[0])
    parser.add_argument("first", type=pathlib.Path, help="JSON of results")
    parser.add_argument("second", type=pathlib.Path, help="from which the first is taken off")
    parser.add_argument("--policies", nargs=2, default=(), metavar="NAME",
                        help="of the first file and of the second")
    arguments = parser.parse_args(argv)
    with experiment.clean_errors():
        try:
            found = compare(_read(arguments.first), _read(arguments.second), arguments.policies)
        except ValueError as error:
            raise config_lib.ConfigError(str(error)) from error
    print("| second - first | mean [95 % interval] |\n|---|---|")
    for quantity, (mean, low, high) in found.items():
        if not np.isnan(mean):
            print(f"| {quantity} | {mean:+.3f} [{low:+.3f}, {high:+.3f}] |")


if __name__ == "__main__":
    main()
