"""The commands that the pages of the documentation tell their readers to type."""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
# Those of benchmarks/README.md take minutes to hours; tests/test_benchmarks.py has their code.
PAGES = sorted([*ROOT.glob("docs/*.md"), *(ROOT / name for name in (
    "README.md", "CONTRIBUTING.md", "launch/README.md", "experiments/README.md"))])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S.*\n)+")
_SETS_UP = ("export ", ". ")
# What a line of code starts with that is a command, and no name of a file, function or option.
_PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:\S*bin/)?(?:python|pip|apt|for|pre-commit|tensorboard|mkdocs|pytest|du"
    r"|sysctl|srun|launch/\S+\.(?:sh|py)) ")
_NAME = re.compile(r"python -m( \S+)?|\S+")


@dataclasses.dataclass(frozen=True)
class Command:
    text: str  # One line, single spaces, no comment.
    set_up: tuple[str, ...] = ()  # Lines of the same block before it that change the shell.


def commands(page: pathlib.Path) -> list[Command]:
    """Every line of the blocks of a page, and inline code that gives a program arguments."""
    text = page.read_text()
    found: list[Command] = []
    for language, block in _FENCE.findall(text):
        if language in ("", "bash", "sh"):
            found += _of_block(block)
    text = _FENCE.sub("\n", text)
    for block in _INDENTED.findall(text):
        if _PROGRAM.match(block.strip()):
            found += _of_block(block)
    for code in re.findall(r"`([^`]+)`", text):
        line = " ".join(code.split())
        if _PROGRAM.match(line) and not _NAME.fullmatch(line):
            found.append(Command(line))
    return found


def _of_block(block: str) -> list[Command]:
    found: list[Command] = []
    set_up: list[str] = []
    for line in block.replace("\\\n", " ").splitlines():
        line = " ".join(re.sub(r"(?:^|\s)# .*", "", line).split())
        if line.startswith(_SETS_UP):
            set_up.append(line)
        elif line:
            found.append(Command(line, tuple(set_up)))
    return found
