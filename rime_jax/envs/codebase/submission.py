"""A submission: the changes of tracked files, without those to tests and test machinery."""

import base64
import binascii
import dataclasses
import fnmatch
import re

from rime_jax.envs.codebase import sandbox

# Where a workspace sees the untouched tree with its one commit (read-only).
PRISTINE = "/opt/pristine"

_FOLDERS = ("test", "tests", "testing")
_TESTS = ("test_*.py", "*_test.py", "tests.py")
# Files that decide how tests run; a change to them is no part of a repair.
_MACHINERY = ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini",
              "setup.cfg", "pyproject.toml", "noxfile.py", "sitecustomize.py", "usercustomize.py",
              "*.pth", ".coveragerc", ".gitattributes")
# (names of folders, forms of names of files).
TEST_FORMS = (_FOLDERS, _TESTS + _MACHINERY)


@dataclasses.dataclass(frozen=True)
class Submission:
    """Attributes:
      patch: what counts, for `git apply`; may be empty. Bytes that are no UTF-8 are surrogates.
      paths: of the files that it changes.
      stripped: paths whose changes do not count.
      problem: why the changes could not be read, which is the agent's doing; then there are none.
    """

    patch: str
    paths: tuple[str, ...]
    stripped: tuple[str, ...]
    problem: str = ""


def collect(workspace: sandbox.Workspace, test_paths: frozenset[str] = frozenset()) -> Submission:
    """The submission in a workspace; nothing that the agent did to its git can change it.

    Args:
      workspace: with `PRISTINE` mounted.
      test_paths: further files that are tests.

    Raises:
      SandboxError: the workspace is lost, or reading the changes takes too long.
    """
    result = workspace.run(
        # The untouched repository compares: the agent's own may be gone or tell something else.
        # Packed, because the output is cut where it is long, and is text. What git warns of, as of
        # ends of lines in a repository with attributes, is no part of it.
        f"set -o pipefail; GIT_DIR={PRISTINE}/.git GIT_WORK_TREE={sandbox.WORKDIR} "
        "GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_OPTIONAL_LOCKS=0 "
        "/usr/bin/git -c core.fileMode=true -c core.quotePath=false diff --binary --full-index "
        "--no-color --no-ext-diff --no-textconv --no-renames HEAD 2>/dev/null "
        "| /usr/bin/base64 -w 0")
    if result.status == "timeout":
        raise sandbox.SandboxError("reading the changes of the workspace took too long")
    if result.dropped_bytes or result.status != "done":
        return Submission("", (), (), "the changes are too large")
    if result.exit_code:
        return Submission("", (), (), "git cannot read the changed files")
    try:
        patch = base64.b64decode(result.output, validate=True)
    except binascii.Error:
        return Submission("", (), (), "git cannot read all of the changed files")
    return strip(patch.decode("utf-8", "surrogateescape"), test_paths)


def strip(patch: str, test_paths: frozenset[str] = frozenset()) -> Submission:
    """Leaves out the sections of a git patch whose paths are tests or test machinery."""
    kept, paths, stripped = [], [], []
    for section in re.split(r"(?=^diff --git )", patch, flags=re.MULTILINE):
        if not section.startswith("diff --git "):
            continue
        touched = _paths(section)
        if any(is_test(path) or path in test_paths for path in touched):
            stripped.append(touched[-1])
        else:
            kept.append(section)
            paths.append(touched[-1])
    return Submission("".join(kept), tuple(paths), tuple(stripped))


def is_test(path: str) -> bool:
    """Whether a path is a test or decides how tests run."""
    *folders, name = path.split("/")
    return (any(folder in _FOLDERS for folder in folders)
            or any(fnmatch.fnmatchcase(name, form) for form in TEST_FORMS[1]))


_RENAMED = re.compile(r"^(?:rename|copy) (?:from|to) (.+)$", re.MULTILINE)


def _paths(section: str) -> list[str]:
    """All paths that a section of a patch names: one, or two of a renamed file."""
    header = section.split("\n@@ ", 1)[0].split("\nGIT binary patch", 1)[0]
    if renamed := _RENAMED.findall(header):
        return [_unquoted(path) for path in renamed]
    head = header.split("\n", 1)[0].removeprefix("diff --git ")
    if head.startswith('"'):
        # "a/x" "b/x"
        return [_unquoted(head[: (len(head) - 1) // 2])[2:]]
    # a/x b/x with the same x twice.
    return [head[2 : len(head) // 2]]


_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


def _unquoted(path: str) -> str:
    """As git writes names with special characters: in quotes, with C's escapes."""
    if not (path.startswith('"') and path.endswith('"')):
        return path

    def character(match: re.Match) -> bytes:
        text = match[1].decode()
        return bytes([int(text, 8) if text.isdigit() else _ESCAPES[text]])

    data = path[1:-1].encode("utf-8", "surrogateescape")
    return re.sub(rb'\\([0-7]{3}|[abtnvfr"\\])', character, data).decode("utf-8", "surrogateescape")
