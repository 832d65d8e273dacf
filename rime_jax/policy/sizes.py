"""What every configuration of a model must hold."""

import dataclasses
import math
from typing import Any


def require_positive(config: Any) -> None:
    """Raises ValueError for a number that is not positive and finite, or a flag that is none."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type is bool and not isinstance(value, bool):
            raise ValueError(f"{field.name} = {value!r} must be true or false")
        if field.type in (int, float) and not (
            isinstance(value, (int, field.type)) and not isinstance(value, bool)
            and 0 < value < math.inf
        ):
            raise ValueError(f"{field.name} = {value!r} must be a positive {field.type.__name__}")
