"""Numbers as the tables show them; with a true minus sign, so that columns align."""

from rime_jax.report.evaluations import Value


def cell(value: float | None, decimals: int, signed: bool) -> str:
    """Empty for None."""
    return "" if value is None else _minus(f"{value:{'+' if signed else ''}.{decimals}f}")


def spread(value: Value, decimals: int) -> str:
    """The 95 % interval, else ± the standard error, else nothing."""
    if value.low is not None and value.high is not None:
        return _minus(f"[{value.low:.{decimals}f}, {value.high:.{decimals}f}]")
    return "" if value.se is None else f"± {value.se:.{decimals}f}"


def is_signed(column: str) -> bool:
    """Whether a column is of differences."""
    return "gain" in column or "improvement" in column


def _minus(text: str) -> str:
    return text.replace("-", "−")
