"""What a JSON value is."""

import math
from typing import Any


def is_number(value: Any) -> bool:
    """Whether it is a finite number; true and false are none."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and math.isfinite(value))
