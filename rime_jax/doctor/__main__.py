"""Looks at this machine, and at what a run would need of it; says what to fix.

    python -m rime_jax.doctor
    python -m rime_jax.doctor --config=experiments/alchemy/rime.py:tiny --set sampler.kind=vllm

Ends with status 1 when something that was asked for is missing. The output has no keys, passwords
or home directories in it and may be put into an issue as it is.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

import jax

from rime_jax import config as config_lib
from rime_jax import experiment
from rime_jax.doctor import findings, machine, run
from rime_jax.doctor.findings import Finding


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rime_jax.doctor", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    experiment.add_arguments(parser, required=False)
    parser.add_argument("--json", action="store_true", help="a list of findings, for programs")
    arguments = parser.parse_args(argv)
    if arguments.set and not arguments.config:
        parser.error("--set belongs to --config")
    # Devices are asked about in another process; this one must not take them.
    jax.config.update("jax_platforms", "cpu")
    found = list(look(arguments.config, arguments.set))
    bad = sum(finding.verdict == "bad" for finding in found)
    if arguments.json:
        rows = [{k: findings.without_secrets(v) for k, v in dataclasses.asdict(f).items()}
                for f in found]
        print(json.dumps({"ok": bad == 0, "findings": rows}, indent=2))
    else:
        print(findings.table(found))
        print(f"\n{bad} to fix: the lines that begin with FAIL" if bad else "\nNothing to fix.")
    sys.exit(1 if bad else 0)


def look(source: str | None = None, assignments: Sequence[str] = ()) -> Iterator[Finding]:
    """Everything about the machine; with a configuration also what its run needs.

    Args:
      source: what --config named, or None.
      assignments: of --set.
    """
    yield from machine.versions()
    yield from machine.variables()
    yield from machine.devices()
    if source is None:
        yield from machine.sandboxes()
        return
    try:
        config = experiment.read(source, assignments)
    except config_lib.ConfigError as error:
        yield from machine.sandboxes()
        yield Finding("run", "configuration", "bad", str(error))
        return
    yield from machine.sandboxes(config.env.sandbox if config.env.domain == "codebase" else None)
    yield Finding("run", "configuration", "ok", f"{source}: {config.name}")
    model, parameters = run.model(config)
    yield model
    yield run.domain(config)
    yield from run.directory(config, source, parameters)
    yield from run.servers(config)


if __name__ == "__main__":
    main()
