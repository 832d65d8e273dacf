"""A task: a repository with something broken in it, and the tests that tell."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from rime_jax.envs.codebase import submission


@dataclasses.dataclass(frozen=True)
class CodeTask:
    """One row of a task set, in the schema of SWE-smith or of Continual Learning Bench.

    Attributes:
      instance_id: unique.
      repository: `owner/name`, or the name of a library.
      source: where its files come from (`trees.Source` by name): repository and commit or version.
      setup_patch: what is applied to the sources before the agent sees them: the bug (SWE-smith) or
        the tests of the repair (Continual Learning Bench).
      gold_patch: the repair; empty where it is the reverse of `setup_patch`.
      fail_to_pass, pass_to_pass: test ids; a repair makes all of them pass.
      statement: the issue that the agent reads.
      test_paths: files that a submission may not change.
      timeout_s: of the tests.
      strategy: how the bug was made; its difficulty depends on it.
    """

    instance_id: str
    repository: str
    source: str
    setup_patch: str
    gold_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    statement: str
    test_paths: tuple[str, ...] = ()
    timeout_s: float = 120.0
    strategy: str = ""

    @property
    def tests(self) -> tuple[str, ...]:
        """All that must pass."""
        return self.fail_to_pass + self.pass_to_pass


class RowError(ValueError):
    """A row that is no task; the message names the field."""


def from_swe_smith(row: Mapping[str, Any]) -> CodeTask:
    """A row of SWE-smith: `patch` introduces the bug, its reverse is the repair.

    Raises:
      RowError: a field is missing or of another type.
    """
    name = _text(row, "instance_id")
    strategy = name.rsplit(".", 1)[-1].split("__")[0]
    return CodeTask(
        instance_id=name,
        repository=_text(row, "repo").removeprefix("swesmith/").rsplit(".", 1)[0]
        .replace("__", "/"),
        source=_text(row, "repo"),
        setup_patch=_text(row, "patch"),
        gold_patch="",
        fail_to_pass=test_ids(row, "FAIL_TO_PASS"),
        pass_to_pass=test_ids(row, "PASS_TO_PASS"),
        statement=_text(row, "problem_statement"),
        strategy="pr" if strategy.startswith("pr_") else strategy,
    )


def from_benchmark(row: Mapping[str, Any]) -> CodeTask:
    """A row of Continual Learning Bench: `test_patch` is applied, `patch` is the repair.

    Raises:
      RowError: a field is missing or of another type.
    """
    test_patch = _text(row, "test_patch")
    return CodeTask(
        instance_id=_text(row, "instance_id"),
        repository=_text(row, "repo"),
        source=f"{_text(row, 'repo')}@{_text(row, 'base_commit')}",
        setup_patch=test_patch,
        gold_patch=_text(row, "patch"),
        fail_to_pass=test_ids(row, "FAIL_TO_PASS"),
        pass_to_pass=test_ids(row, "PASS_TO_PASS"),
        statement=_text(row, "problem_statement"),
        test_paths=_paths(test_patch),
        timeout_s=_seconds(row, "test_timeout", 300),
        strategy="pr",
    )


def test_ids(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A row's list of tests.

    Raises:
      RowError: it is none.
    """
    value = row.get(name)
    if isinstance(value, str):  # SWE-bench's form: a list inside of a string.
        try:
            value = json.loads(value)
        except ValueError:
            pass
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise RowError(f"{row.get('instance_id', 'a row')}: {name} must be a list of test ids, not "
                       f"{value!r:.80}")
    return tuple(value)


def _paths(patch: str) -> tuple[str, ...]:
    """Files that a patch touches, deleted and oddly named ones included."""
    plain = [line[6:] for line in patch.splitlines() if line.startswith("+++ b/")]
    found = submission.strip(patch)
    return tuple(dict.fromkeys((*plain, *found.paths, *found.stripped)))


def whole(patch: str) -> str:
    """A patch with the end of its last line, which some rows lack and git insists on."""
    return patch if patch.endswith("\n") or not patch else patch + "\n"


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise RowError(f"{row.get('instance_id', 'a row')}: {name} = {value!r} is no text; the "
                       "schema is that of SWE-smith or Continual Learning Bench")
    return value


def _seconds(row: Mapping[str, Any], name: str, otherwise: float) -> float:
    value = row.get(name, otherwise)
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise RowError(f"{row.get('instance_id', 'a row')}: {name} = {value!r:.80} must be a "
                       "number of seconds above 0")
    return float(value)


def changed_functions(patch: str) -> frozenset[tuple[str, str]]:
    """(file, function or class) pairs that a git patch changes, as its hunk headers name them."""
    found, path = set(), ""
    for line in patch.splitlines():
        if line.startswith("+++ b/"):
            path = line[6:]
        elif match := re.match(r"@@ [^@]*@@ \s*(?:async )?(?:def|class) (\w+)", line):
            found.add((path, match[1]))
    return frozenset(found)
