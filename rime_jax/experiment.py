"""Reads the configuration of an experiment for the programs' `--config` and `--set`."""

import argparse
import contextlib
import importlib.util
import pathlib
import sys
from collections.abc import Iterator, Sequence

import ml_collections

from rime_jax import config as config_lib
from rime_jax.policy import chat, weights
from rime_jax.tracking import checkpoint


def add_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds `--config` and `--set`."""
    parser.add_argument(
        "--config", required=required,
        help="an experiment file (experiments/<domain>/<name>.py) or a run's config.json",
    )
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="OPTION=VALUE",
        help="changes options, e.g. --set learner.lr=1e-4 steps=50; @FILE reads them from a file, "
             "one a line (launch/presets); may be repeated, the last one counts",
    )


def read(path: str, assignments: Sequence[str] = ()) -> ml_collections.ConfigDict:
    """The validated configuration of an experiment file or of a saved config.json.

    Args:
      path: a Python file with `get_config()`, or a JSON file that `config.dump` wrote.
      assignments: `OPTION=VALUE` strings, and `@FILE` for those of a file, one a line; lines that
        begin with `#` and empty ones say nothing.

    Raises:
      ConfigError: the file cannot be used, or an option is wrong.
    """
    config = config_lib.load(path) if path.endswith(".json") else _run(pathlib.Path(path))
    pairs = {}
    for assignment in _spelled_out(assignments):
        name, equals, value = assignment.partition("=")
        if not equals:
            raise config_lib.ConfigError(f"--set {assignment}: write OPTION=VALUE")
        pairs[name] = value
    config_lib.override(config, pairs)
    config_lib.validate(config)
    return config


def _spelled_out(assignments: Sequence[str]) -> Iterator[str]:
    for assignment in assignments:
        if not assignment.startswith("@"):
            yield assignment
            continue
        try:
            lines = pathlib.Path(assignment[1:]).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise config_lib.ConfigError(f"--set {assignment}: cannot be read: {error}") from error
        yield from (line for line in map(str.strip, lines) if line and line[0] != "#")


@contextlib.contextmanager
def clean_errors() -> Iterator[None]:
    """Ends the program with the message alone where the user's input is at fault."""
    try:
        yield
    except (config_lib.ConfigError, weights.ModelError, chat.TemplateError,
            checkpoint.CheckpointError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.strerror}: {error.filename or 'see above'}; nothing that was "
                 "finished before is lost, and the same command goes on once the cause is gone")
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(130)


def _run(path: pathlib.Path) -> ml_collections.ConfigDict:
    if not path.is_file():
        raise config_lib.ConfigError(f"--config {path}: no such file")
    if path.suffix != ".py":
        raise config_lib.ConfigError(f"--config {path}: name an experiment file (.py) or a run's "
                                     "config.json")
    spec = importlib.util.spec_from_file_location(f"rime_experiment_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config()
    except (AttributeError, KeyError, TypeError) as error:
        # ConfigDict reports an unknown or wrongly typed field with these.
        raise config_lib.ConfigError(f"{path}: {error.args[0]}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise config_lib.ConfigError(
            f"{path}: get_config() returned {config!r}; return what config.default() makes"
        )
    return config
