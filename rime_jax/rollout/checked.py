"""What environments, samplers and judges hand over, checked where it enters.

A wrong value is refused at once, by a TypeError or ValueError that says what it was; later it
would be a broken curve, or a loss on tokens that nobody sampled.
"""

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from rime_jax.envs import base as env_base
from rime_jax.judge import base as judge_base
from rime_jax.sampler import base as sampler_base

# A log-probability above 0 by no more than this is one of 0, rounded.
_ROUNDING = 1e-6
_SHOWN = 200


def observation(value: object) -> str:
    """What `reset` returned."""
    return _text("what reset returns", value)


def turn(value: Any) -> env_base.Turn:
    """What `step` returned."""
    _kind("what step returns", value, env_base.Turn)
    return env_base.Turn(
        message=_text("Turn.message", value.message),
        done=_flag("Turn.done", value.done),
        format_error=(
            None if value.format_error is None
            else _text("Turn.format_error", value.format_error)
        ),
    )


def outcome(value: Any) -> env_base.Outcome:
    """What `outcome` returned."""
    _kind("what outcome returns", value, env_base.Outcome)
    _kind("Outcome.metrics", value.metrics, Mapping)
    return env_base.Outcome(
        reward=_number("Outcome.reward", value.reward),
        performance=(
            None if value.performance is None
            else _number("Outcome.performance", value.performance)
        ),
        solved=_flag("Outcome.solved", value.solved),
        out_of_turns=_flag("Outcome.out_of_turns", value.out_of_turns),
        message=_text("Outcome.message", value.message),
        metrics={
            _text("a name in Outcome.metrics", name): _number(f"Outcome.metrics[{name!r}]", number)
            for name, number in value.metrics.items()
        },
    )


def session(value: sampler_base.Session, prompt: list[int]) -> sampler_base.Session:
    """What `open` returned."""
    if value.ids != prompt:
        raise ValueError("the ids of an opened session are not those of its prompt")
    return value


def appended(found: list[int], ids: list[int]) -> None:
    """`found`: the session's ids from where `ids` were to be appended."""
    if found != ids:
        raise ValueError(
            f"a session's ids do not go on with those that were appended: {len(found)} found, "
            f"{len(ids)} appended"
        )


def generation(
    value: Any, found: list[int], max_new_tokens: int
) -> sampler_base.Generation:
    """What `generate` returned.

    Args:
      found: the session's ids from where the generation began.
    """
    _kind("what generate returns", value, sampler_base.Generation)
    _column("ids", value.ids, {int})
    _column("logprobs", value.logprobs, {float, int})
    _column("versions", value.versions, {int})
    lengths = len(value.ids), len(value.logprobs), len(value.versions)
    if len(set(lengths)) > 1:
        raise ValueError("Generation.ids, logprobs and versions have different lengths: "
                         f"{lengths}")
    if lengths[0] > max_new_tokens:
        raise ValueError(f"generate returned {lengths[0]} tokens where {max_new_tokens} were "
                         "asked for")
    if value.finish not in ("stop", "length", "context"):
        raise ValueError("Generation.finish must be stop, length or context, but is "
                         f"{shown(value.finish)}")
    if value.ids and not 0 <= min(value.ids) <= max(value.ids) < 2**31:
        raise ValueError(f"Generation.ids are not all token ids: {shown(value.ids)}")
    # The sum is finite only if every term is, and min and max would pass over a nan.
    if value.logprobs and not (
        math.isfinite(sum(value.logprobs)) and max(value.logprobs) <= _ROUNDING
    ):
        raise ValueError("Generation.logprobs must be finite and not above 0, but are "
                         f"{shown(value.logprobs)}")
    appended(found, value.ids)
    return value


def verdict(value: Any) -> judge_base.Verdict | None:
    """What `score` returned."""
    if value is not None:
        _kind("what score returns", value, judge_base.Verdict)
    return value


def shown(value: object) -> str:
    """A short `repr`, also for objects whose own fails."""
    try:
        text = repr(value)
    except BaseException as error:
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _kind(what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be of type {kind.__name__}, but is {shown(value)}")


def _text(what: str, value: Any) -> str:
    """A text that can be encoded: a lone surrogate, as undecodable bytes leave it, becomes `?`."""
    _kind(what, value, str)
    return str.encode(value, "utf-8", "replace").decode()


def _flag(what: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what} must be a bool, but is {shown(value)}")
    return bool(value)


def _number(what: str, value: object) -> float:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{what} must be a number, but is {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, but is {shown(value)}")
    return number


def _column(name: str, values: Any, kinds: set[type]) -> None:
    _kind(f"Generation.{name}", values, list)
    if not set(map(type, values)) <= kinds:
        names = " or ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"Generation.{name} must hold {names}, but is {shown(values)}")
