"""A submission: the changes of tracked files, without those to tests and test machinery."""

import dataclasses
import fnmatch
import re

from rime_jax.envs.codebase import sandbox

# Where a workspace sees the untouched tree with its one commit (read-only).
PRISTINE = "/opt/pristine"

# Files that decide how tests run; a change to them is no part of a repair.
_MACHINERY = ("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml",
              "noxfile.py", "sitecustomize.py", "usercustomize.py", "*.pth", ".coveragerc",
              ".gitattributes")
_TESTS = ("test_*.py", "*_test.py", "tests.py")


@dataclasses.dataclass(frozen=True)
class Submission:
    """Attributes:
      patch: what counts, for `git apply`; may be empty.
      paths: of the files that it changes.
      stripped: paths whose changes do not count.
    """

    patch: str
    paths: tuple[str, ...]
    stripped: tuple[str, ...]


def collect(workspace: sandbox.Workspace, test_paths: frozenset[str] = frozenset()) -> Submission:
    """The submission in a workspace; nothing that the agent did to its git can change it.

    Args:
      workspace: with `PRISTINE` mounted.
      test_paths: further files that are tests.

    Raises:
      SandboxError: the changes are too large to be read, or git fails.
    """
    result = workspace.run(
        # The untouched repository compares: the agent's own may be gone or tell something else.
        f"cp {PRISTINE}/.git/index /dev/shm/index && "
        f"GIT_DIR={PRISTINE}/.git GIT_WORK_TREE={sandbox.WORKDIR} GIT_INDEX_FILE=/dev/shm/index "
        "GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_OPTIONAL_LOCKS=0 "
        "/usr/bin/git -c core.fileMode=false diff --binary --full-index --no-color --no-ext-diff "
        "--no-textconv --no-renames HEAD")
    if result.exit_code or result.dropped_bytes:
        raise sandbox.SandboxError(
            f"the changes of the workspace cannot be read (exit code {result.exit_code}, "
            f"{result.dropped_bytes} bytes too many): {result.output[:500]}")
    return strip(result.output, test_paths)


def strip(patch: str, test_paths: frozenset[str] = frozenset()) -> Submission:
    """Leaves out the sections of a git patch whose paths are tests or test machinery."""
    kept, paths, stripped = [], [], []
    for section in re.split(r"(?=^diff --git )", patch, flags=re.MULTILINE):
        if not section.startswith("diff --git "):
            continue
        path = _path(section)
        if is_test(path) or path in test_paths:
            stripped.append(path)
        else:
            kept.append(section)
            paths.append(path)
    return Submission("".join(kept), tuple(paths), tuple(stripped))


def is_test(path: str) -> bool:
    """Whether a path is a test or decides how tests run."""
    *folders, name = path.split("/")
    return (any(folder in ("test", "tests", "testing") for folder in folders)
            or any(fnmatch.fnmatch(name, form) for form in _MACHINERY + _TESTS))


def _path(section: str) -> str:
    head = section.split("\n", 1)[0].removeprefix("diff --git ")
    # "a/x b/x" with the same x twice: renames are off.
    if head.startswith('"'):
        return head[1:].split('"', 1)[0].split("/", 1)[1]
    return head[2 : len(head) // 2]
