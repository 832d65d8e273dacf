"""What every configuration of a model must hold."""

import dataclasses
from typing import Any


def require_positive(config: Any) -> None:
    """Raises ValueError for a size that is no positive number, by its name."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type in (int, float) and not (
            isinstance(value, (int, field.type)) and not isinstance(value, bool) and value > 0
        ):
            raise ValueError(f"{field.name} = {value!r} must be a positive {field.type.__name__}")
