"""What a JSON value is."""

import sys
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number; true and false are none."""
    # By comparison, as whole numbers of JSON may be too large for a float.
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and abs(value) <= sys.float_info.max)
