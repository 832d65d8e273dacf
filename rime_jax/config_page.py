"""The configuration reference: every option with its default, range and reason.

    python -m rime_jax.config_page > docs/configuration.md
"""

from typing import Any

from rime_jax import config as config_lib
from rime_jax.options import Option

_HEAD = """\
# Configuration

Made from `rime_jax/config.py` by `python -m rime_jax.config_page > docs/configuration.md`. An
experiment changes these fields (`c.learner.lr = 1e-4`), `--set learner.lr=1e-4` changes them from
the command line; elements of a tuple are separated by commas. Every program checks all of them, and
how they agree with each other (`rime_jax/config_rules.py`), before it does anything.
"""


def page() -> str:
    """Markdown: a table for each part of the configuration."""
    groups: dict[str, list[str]] = {}
    for name, option in config_lib.options():
        groups.setdefault(name.rpartition(".")[0], []).append(_row(name, option))
    lines = [_HEAD]
    for group, rows in groups.items():
        lines += [f"## {group or 'The run'}", "", "| option | default | allowed | meaning |",
                  "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _row(name: str, option: Option) -> str:
    return "| " + " | ".join(
        cell.replace("|", "\\|").replace("<", "&lt;") for cell in (
            f"`{name}`", f"`{_shown(option.default)}`", _allowed(option), option.doc)) + " |"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return repr(value) if value == "" else str(value)


def _allowed(option: Option) -> str:
    several = isinstance(option.default, tuple)
    kind = type(option.default[0] if several else option.default).__name__
    if several:
        kind = f"{kind}, …" if not option.low else f"{kind}, … ({option.low} or more)"
    if option.choices is not None:
        return (f"{kind}: " if several else "") + ", ".join(f"`{c}`" for c in option.choices)
    bounds = {"≥": None if several else option.low, "≤": option.high}
    limits = " and ".join(f"{sign} {_shown(b)}" for sign, b in bounds.items() if b is not None)
    return f"{kind} {limits}".strip()


if __name__ == "__main__":
    print(page(), end="")
