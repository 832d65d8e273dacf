"""The issue that an agent reads: what fails and how, never where the fault is or what it is."""

import dataclasses
import random
import re
from collections.abc import Sequence

from rime_jax.envs.codebase import sandbox, submission

# Failures that are shown in full, and lines of each.
_SHOWN = 3
_LINES = 24
_MOST_CHARACTERS = 160
# Shorter pieces of code stand in tests by chance.
_TELLING_CHARACTERS = 8


@dataclasses.dataclass(frozen=True)
class Failure:
    """Attributes:
      test: its id.
      lines: of the traceback, those of test files and of the error.
    """

    test: str
    lines: tuple[str, ...]


def failures(output: str, tests: Sequence[str]) -> list[Failure]:
    """What pytest (`--tb=short`) printed of some tests, without any line of the library.

    Args:
      output: of pytest.
      tests: ids of those that fail.

    Returns:
      At most three, in the order of `tests`; none for tests that were not even found.
    """
    # Some libraries ask pytest for colours.
    output = re.sub(r"\x1b\[[0-9;]*m", "", output)
    sections = re.split(r"^_{3,} (.+?) _{3,}$|^={3,} .*$", output, flags=re.MULTILINE)
    texts: dict[str, list[str]] = {}
    # The split alternates between what stands before a heading and the heading.
    for heading, text in zip(sections[1::2], sections[2::2], strict=True):
        if heading is not None:
            texts.setdefault(heading.removeprefix("ERROR at setup of "), []).append(text)
    found = []
    for test in tests:
        file, _, inner = test.partition("::")
        lines = next((lines for text in texts.get(inner.replace("::", ".", _classes(inner)), ())
                      if _is_of(file, text) and (lines := _of_tests(text))), None)
        if lines is not None:
            found.append(Failure(test, tuple(lines)))
        if len(found) == _SHOWN:
            break
    return found


def _classes(inner: str) -> int:
    """How many `::` part classes and function; those in a parameter are its own."""
    return inner.split("[", 1)[0].count("::")


def _is_of(file: str, text: str) -> bool:
    """Whether a traceback can be of a test in this file; inherited tests run in another."""
    frames = re.findall(r"^(?:\S+/)?(\S+\.py):\d+: in ", text, flags=re.MULTILINE)
    return file in text or not any(re.fullmatch(r"test_.*|.*_test\.py", name) for name in frames)


def _of_tests(text: str) -> list[str]:
    lines, shown = [], False
    for line in text.splitlines():
        if re.match(r"-{3,} Captured ", line):
            break
        if frame := re.match(r"(\S+\.\w+):\d+: in ", line):
            shown = submission.is_test(frame[1])
        elif line.startswith("E "):
            shown = True
        elif not line.startswith("    ") or not line.strip(" ^~"):
            continue
        if shown:
            lines.append(line[:_MOST_CHARACTERS].rstrip())
    if len(lines) > _LINES:
        lines[_LINES // 2 : len(lines) - _LINES // 2] = ["    [...]"]
    return lines


def write(
    library: str, tests: Sequence[str], shown: Sequence[Failure], patch: str, seed: str
) -> str | None:
    """The statement; None if it could only be written with a line of the patch in it.

    Args:
      library: name and version.
      tests: ids of all that fail.
      shown: some of them, with what pytest prints.
      patch: introduces the bug; what it changes does not appear.
      seed: decides the wording.
    """
    rng = random.Random(seed)
    secret = changed_lines(patch)
    parts = [rng.choice(_OPENINGS).format(library=library)]
    for failure in shown:
        # Addresses are others in every run.
        lines = [re.sub(r"0x[0-9a-f]{6,}", "0x...", line.removeprefix(f"{sandbox.WORKDIR}/"))
                 for line in failure.lines]
        kept = [line for line in lines if not any(text in line for text in secret)]
        if kept:
            parts.append(f"`{failure.test}`:\n\n```\n" + "\n".join(kept) + "\n```")
    many = f"{len(tests)} tests fail" if len(tests) > 1 else "One test fails"
    parts.append(f"{many}:\n\n" + "\n".join(f"- `{test}`" for test in tests))
    parts.append(rng.choice(_CLOSINGS))
    text = "\n\n".join(parts) + "\n"
    return None if any(line in text for line in secret) else text


def changed_lines(patch: str) -> set[str]:
    """What a patch adds and removes, line by line without indentation; trifles left out."""
    lines = (line[1:].strip() for line in patch.splitlines()
             if line[:1] in ("+", "-") and not line.startswith(("+++ ", "--- ")))
    return {line for line in lines if len(line) >= _TELLING_CHARACTERS}


_OPENINGS = (
    "# {library} does not do what its tests expect\n\nAfter a recent change, some behaviour of "
    "{library} is wrong.",
    "# Regression in {library}\n\nThis used to work in {library} and no longer does.",
    "# Wrong behaviour of {library}\n\nI get wrong results or unexpected errors from {library}. "
    "Its own tests show them.",
    "# Tests of {library} fail\n\nOn a clean checkout of {library} the test suite is not green.",
)
_CLOSINGS = (
    "The tests are right; please mend the library so that these pass and the others still do.",
    "Expected: all of these pass, as do the tests that pass now. The tests need no change.",
    "Please find the cause in the library and repair it without changing tests or breaking others.",
)
