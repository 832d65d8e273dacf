"""What one option is: its type, its allowed values, how it is read from text."""

import dataclasses
import math
from typing import Any

from rime_jax import errors


class ConfigError(errors.UserError):
    """A configuration that cannot run; the message names the field and the remedy."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: its default (which also fixes the type), meaning and allowed values.

    Attributes:
      default: the default; an int is accepted where the default is a float.
      doc: meaning, unit and reason.
      low: smallest allowed value; for a tuple, smallest allowed length.
      high: largest allowed value.
      choices: the allowed values (of the elements, for a tuple).
    """

    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple | None = None


def check(name: str, value: Any, option: Option) -> None:
    """Refuses a value that the option does not allow.

    Raises:
      ConfigError: names the option, what it allows and what it means.
    """
    expected = type(option.default)
    ok = (_is_number(value) if expected is float
          else isinstance(value, expected) and (expected is bool or not isinstance(value, bool)))
    if not ok:
        raise ConfigError(f"{name} must be {_article(option.default)}, not {value!r} "
                          f"({type(value).__name__}): {option.doc}")
    if isinstance(value, str) and value.startswith("~"):
        raise ConfigError(f"{name} = {value!r}: no shell has put your home directory in the place "
                          f"of ~ there; write it out, or {name}=\"$HOME{value[1:]}\"")
    if isinstance(value, tuple):
        _check_tuple(name, value, option)
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} = {value!r} is no finite number: {option.doc}")
    if option.choices is not None and value not in option.choices:
        raise ConfigError(f"{name} = {value!r} is none of {list(option.choices)}: {option.doc}")
    # `not (a >= b)` also refuses nan.
    if option.low is not None and not value >= option.low:
        raise ConfigError(f"{name} = {value!r} is below {option.low}: {option.doc}")
    if option.high is not None and not value <= option.high:
        raise ConfigError(f"{name} = {value!r} is above {option.high}: {option.doc}")


def parse(name: str, text: str, option: Option) -> Any:
    """The value that `text` (of `--set NAME=TEXT`) means, of the option's own type.

    Raises:
      ConfigError: the text is no such value.
    """
    if isinstance(option.default, str):
        return text
    if isinstance(option.default, tuple):
        element = type(option.default[0])
        parts = [p.strip() for p in text.strip("()[] ").split(",") if p.strip()]
        try:
            return tuple(element(p) for p in parts)
        except ValueError:
            raise ConfigError(f"{name} is a list of {element.__name__}; got {text!r}") from None
    words = {"true": True, "false": False} if isinstance(option.default, bool) else {}
    try:
        if words:
            return words[text.lower()]
        number = float(text)
        return int(number) if isinstance(option.default, int) and number.is_integer() else number
    except (KeyError, ValueError):
        raise ConfigError(f"{name} must be {_article(option.default)}, not {text!r}: "
                          f"{option.doc}") from None


def _check_tuple(name: str, value: tuple, option: Option) -> None:
    element = type(option.default[0])
    for item in value:
        if not isinstance(item, element) or isinstance(item, bool):
            raise ConfigError(f"{name} holds {item!r}, which is not a {element.__name__}")
        if option.choices is not None and item not in option.choices:
            raise ConfigError(f"{name} holds {item!r}, none of {list(option.choices)}: "
                              f"{option.doc}")
    if len(set(value)) < len(value):
        raise ConfigError(f"{name} = {value!r} names an element twice; each may stand once")
    if option.low is not None and len(value) < option.low:
        raise ConfigError(f"{name} needs at least {option.low} element(s): {option.doc}")


def _article(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
