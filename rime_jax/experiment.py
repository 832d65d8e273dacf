"""Reads the configuration of an experiment for the programs' `--config` and `--set`.

    --config=experiments/alchemy/rime.py                  the published scale
    --config=experiments/alchemy/rime.py:tiny             the size for two cores
    --config=experiments/alchemy/rime.py:tiny,steps=3     and other values of options
"""

import argparse
import contextlib
import errno
import importlib.util
import inspect
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import ml_collections

from rime_jax import config as config_lib
from rime_jax import errors

# Sizes of an experiment; the first is meant where none is named.
SIZES = ("published", "tiny")
# Files that waiting does not bring.
_REFUSING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
             errno.ENAMETOOLONG, errno.ELOOP)


def add_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds `--config` and `--set`."""
    parser.add_argument(
        "--config", required=required,
        help="an experiment file (experiments/<domain>/<name>.py), with a size and values of "
             "options after a colon (FILE.py:tiny,steps=3), or a run's config.json",
    )
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="OPTION=VALUE",
        help="changes options, e.g. --set learner.lr=1e-4 steps=50; @FILE reads them from a file, "
             "one a line (launch/presets); may be repeated, the last one counts",
    )


def read(path: str, assignments: Sequence[str] = ()) -> ml_collections.ConfigDict:
    """The validated configuration of an experiment file or of a saved config.json.

    A size other than the published one becomes part of the name, so that sizes never share a run
    directory.

    Args:
      path: a Python file with `get_config(size)`, or a JSON file that `config.dump` wrote. After
        the Python file may follow `:`, a size of `SIZES`, and `OPTION=VALUE` pairs, separated by
        commas.
      assignments: `OPTION=VALUE` strings, and `@FILE` for those of a file, one a line; lines that
        begin with `#` and empty ones say nothing.

    Raises:
      ConfigError: the file cannot be used, or an option is wrong.
    """
    file, size, own = split(path)
    config = config_lib.load(file) if file.endswith(".json") else _run(pathlib.Path(file), size)
    pairs = dict(own)
    for assignment, where in _spelled_out(assignments):
        name, equals, value = (part.strip() for part in assignment.partition("="))
        if not equals:
            raise config_lib.ConfigError(f"--set {assignment}: write OPTION=VALUE{where}")
        pairs[name] = value
    config_lib.override(config, pairs)
    config_lib.validate(config)
    return config


def named(name: str, size: str) -> str:
    """The name of an experiment in a size, and so of its run directory."""
    return name if size == SIZES[0] else f"{name}_{size}"


def split(path: str) -> tuple[str, str | None, dict[str, str]]:
    """FILE:SIZE,OPTION=VALUE,… as (FILE, SIZE or None, values of options).

    A piece without `=` belongs to the value before it: `env.edges=12,10` is one value.

    Raises:
      ConfigError: a piece is neither a size nor a pair, or the file is a saved configuration.
    """
    found = re.fullmatch(r"(.*\.(?:py|json)):(.*)", path, re.DOTALL)
    if found is None:
        return path, None, {}
    file, size, pairs, last = found.group(1), None, {}, None
    for i, piece in enumerate(found.group(2).split(",")):
        name, equals, value = piece.partition("=")
        if equals and name:
            pairs[name], last = value, name
        elif i == 0 and piece in SIZES:
            size = piece
        elif last is not None and piece not in SIZES:
            pairs[last] += f",{piece}"
        else:
            raise config_lib.ConfigError(
                f"--config {path}: {piece!r} is no argument; write a size ({', '.join(SIZES)}) "
                f"and then OPTION=VALUE pairs: {file}:{SIZES[1]},steps=3")
    if file.endswith(".json"):
        raise config_lib.ConfigError(
            f"--config {path}: a saved configuration takes no arguments; change options with --set")
    return file, size, pairs


def _spelled_out(assignments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every `OPTION=VALUE`, and in which file it stands."""
    for assignment in assignments:
        if not assignment.startswith("@"):
            yield assignment, ""
            continue
        try:
            # Editors of Windows begin a file with a mark of its own.
            lines = pathlib.Path(assignment[1:]).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise config_lib.ConfigError(f"--set {assignment}: cannot be read: {error}") from error
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and line[0] != "#":
                yield line, f" in {assignment[1:]}, line {number}"


@contextlib.contextmanager
def clean_errors() -> Iterator[None]:
    """Ends the program with a message instead of a traceback where the program is not at fault.

    The status is that of rime_jax/errors.py: REFUSED where the user's input is at fault, FAILED
    where the cause may pass.
    """
    try:
        yield
    except errors.UserError as error:
        _end(str(error), errors.REFUSED)
    except errors.TransientError as error:
        _end(str(error), errors.FAILED)
    except OSError as error:
        if error.errno in _REFUSING:
            _end(f"{error.strerror}: {error.filename or 'see above'}; name another place, or make "
                 "this one usable", errors.REFUSED)
        _end(f"{error.strerror}: {error.filename or 'see above'}; nothing that was finished before "
             "is lost, and the same command goes on once the cause is gone", errors.FAILED)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(130)


def _end(message: str, status: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    end = SystemExit(f"error: {message}")  # for who calls a program's main
    end.code = status
    raise end


def _run(path: pathlib.Path, size: str | None) -> ml_collections.ConfigDict:
    if not path.is_file():
        raise config_lib.ConfigError(f"--config {path}: no such file: {path.absolute()}")
    if path.suffix != ".py":
        raise config_lib.ConfigError(f"--config {path}: name an experiment file (.py) or a run's "
                                     "config.json")
    spec = importlib.util.spec_from_file_location(f"rime_experiment_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # As its suffix is .py.
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*_sizes(path, module.get_config, size))
    except ModuleNotFoundError as error:
        raise config_lib.ConfigError(
            f"{path}: {error}; start where that module is, or name its directory in PYTHONPATH"
        ) from error
    except errors.UserError:
        raise
    except Exception as error:
        # Whatever the file does wrong it would do again. ConfigDict reports an unknown or wrongly
        # typed field so, too.
        raise config_lib.ConfigError(f"{_line(path, error)}: {_told(error)}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise config_lib.ConfigError(
            f"{path}: get_config() returned {config!r}; return what config.default() makes"
        )
    if size is not None:
        config.name = named(config.name, size)
    return config


def _line(path: pathlib.Path, error: Exception) -> str:
    """The file, and its last line that the error went through."""
    numbers = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
               if frame.filename == str(path)]
    return f"{path}, line {numbers[-1]}" if numbers else str(path)


def _told(error: Exception) -> str:
    """What it says; of an unknown option without all that there are."""
    name = type(error).__name__
    while error.args and isinstance(error.args[0], Exception):
        error = error.args[0]
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return f"{name}: " + re.sub(r" Other fields present: .*", "", text)


def _sizes(path: pathlib.Path, get_config: Callable, size: str | None) -> tuple[str, ...]:
    """The arguments of `get_config`."""
    if size is None:
        return ()
    if not inspect.signature(get_config).parameters:
        raise config_lib.ConfigError(
            f"--config {path}:{size}: this file has one size, as get_config() takes none. Leave "
            f"{size!r} out, or write get_config(size={SIZES[0]!r}) and hand the size on to the "
            "experiment that it starts from")
    return (size,)
