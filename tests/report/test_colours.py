"""Text can be read on what lies behind it, in light and dark (WCAG 2: 4.5 to 1)."""

import importlib.resources
import re

import pytest

STYLE = importlib.resources.files("rime_jax.report").joinpath("assets/style.css").read_text()
LIGHT, DARK = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
               for block in re.findall(r":root[^{]*\{([^}]*)\}", STYLE)[:2])
# Text → what it stands on.
PAIRS = [
    *((text, behind) for text in ("ink", "muted", "accent", "cut")
      for behind in ("paper", "panel")),
    *((text, f"{text}-wash") for text in ("good", "fail", "cut", "lost")),
]
LINES = [f"series-{i}" for i in range(1, 9)]


def contrast(a, b):
    """Ratio of the relative luminances of two colours."""
    def luminance(colour):
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "behind"), PAIRS)
def test_text_can_be_read(theme, text, behind):
    assert contrast(theme[text], theme[behind]) >= 4.5


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("line", LINES)
def test_lines_of_figures_stand_out(theme, line):
    assert contrast(theme[line], theme["paper"]) >= 3


def test_both_themes_have_the_same_colours():
    assert LIGHT.keys() == DARK.keys() and len(LIGHT) > 15
