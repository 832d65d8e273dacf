"""Whether a task is one: its tests fail with the bug and pass with the repair, by running them."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import sys
import tempfile

from rime_jax.envs.codebase import grading, sandbox, submission, trees
from rime_jax.envs.codebase.tasks import CodeTask, whole

TIMEOUT_S = 120.0
MOST_FAILING = 20
FEWEST_PASSING, MOST_PASSING = 3, 500
# A test with a longer or unprintable id can hardly be named on a command line.
_ID_CHARACTERS = 200


class ValidationError(ValueError):
    """A library whose tests cannot serve; the message says why."""


@dataclasses.dataclass(frozen=True)
class Suite:
    """Attributes:
      tests: ids of those that pass in the untouched tree whenever they are run, in their order.
      seconds: of a run.
    """

    tests: tuple[str, ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Attributes:
      reason: why it is no task; empty: it is one.
      failed: tests of the suite that do not pass with the bug.
      output: of pytest.
    """

    reason: str
    failed: tuple[str, ...] = ()
    output: str = ""


def measure(box: sandbox.Sandbox, base: sandbox.Base) -> Suite:
    """Runs the tests of an untouched tree twice in full, then those that passed by their ids.

    Raises:
      ValidationError: the tests do not run, or too few pass.
      SandboxError: the sandbox failed.
    """
    def passing(ids: tuple[str, ...] = ()) -> grading.TestRun:
        run = grading.run_tests(box, base, ids, TIMEOUT_S)
        if not run.complete:
            raise ValidationError(f"the tests do not run to their end within {TIMEOUT_S:g} s: "
                                  f"{run.output[-600:]}")
        return run

    first, second = passing(), passing()
    tests = tuple(test for test, good in first.passed.items()
                  if good and second.passed.get(test) and len(test) <= _ID_CHARACTERS
                  and test.isascii() and test.isprintable())
    if len(tests) <= FEWEST_PASSING:
        raise ValidationError(f"{len(tests)} tests pass, which are too few")
    named = passing(tests)
    return Suite(tuple(test for test in tests if named.passed.get(test)),
                 max(first.seconds, second.seconds))


def try_bug(box: sandbox.Sandbox, base: sandbox.Base, suite: Suite, patch: str) -> Verdict:
    """Whether a bug breaks a few tests of a suite and no more.

    Raises:
      SandboxError: the sandbox failed.
    """
    # What takes ten times as long as it did hangs.
    limit = min(TIMEOUT_S, 10 + 10 * suite.seconds)
    run = grading.run_tests(box, base, (), limit, patch)
    if not run.complete:
        return Verdict("the tests do not run to their end with the bug")
    failed = tuple(test for test in suite.tests if not run.passed.get(test, False))
    if not failed:
        return Verdict("no test fails with the bug")
    if len(failed) > MOST_FAILING:
        return Verdict(f"more than {MOST_FAILING} tests fail with the bug")
    if any(test not in run.passed for test in failed):
        return Verdict("some tests are not even found with the bug")
    if len(suite.tests) - len(failed) < FEWEST_PASSING:
        return Verdict(f"fewer than {FEWEST_PASSING} tests pass with the bug")
    return Verdict("", failed, run.output)


def passing(suite: tuple[str, ...], failed: tuple[str, ...]) -> tuple[str, ...]:
    """PASS_TO_PASS of a task: the tests of its library but for the failing ones; at most 500.

    Those of a large library are chosen by hash, so that every task has nearly the same.
    """
    gone = set(failed)
    rest = [test for test in suite if test not in gone]
    if len(rest) > MOST_PASSING:
        chosen = set(sorted(rest, key=_hash)[:MOST_PASSING])
        rest = [test for test in rest if test in chosen]
    return tuple(rest)


def useful(suite: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a suite that `passing` can choose, whatever up to 20 tests fail."""
    if len(suite) <= MOST_PASSING + MOST_FAILING:
        return suite
    chosen = set(sorted(suite, key=_hash)[: MOST_PASSING + MOST_FAILING])
    return tuple(test for test in suite if test in chosen)


def _hash(test: str) -> str:
    return hashlib.sha256(test.encode()).hexdigest()


def validate(
    task: CodeTask, store: trees.TreeStore, box: sandbox.Sandbox, cache: pathlib.Path
) -> Verdict:
    """Runs a task's tests by their ids in its own tree and with its repair.

    Args:
      task: from anywhere.
      store: prepares its tree.
      box: where the tests run.
      cache: verdicts are kept there by the task's content and the grader's, and not found anew.

    Raises:
      SandboxError, SourceError: it could not be found out.
    """
    content = json.dumps([dataclasses.asdict(task), _grader()], sort_keys=True)
    file = cache / "verdicts" / f"{hashlib.sha256(content.encode()).hexdigest()}.json"
    # A file that a crash of the machine left damaged is as if absent.
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        return Verdict(json.loads(file.read_text())["reason"])
    verdict = Verdict(_reason(task, store.prepare(task), box))
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as temporary:
        json.dump({"instance_id": task.instance_id, "reason": verdict.reason}, temporary)
    os.replace(temporary.name, file)
    return verdict


@functools.cache
def _grader() -> str:
    """What a verdict depends on beside the task: the grader's own files and this Python."""
    files = sorted(pathlib.Path(grading.__file__).parent.glob("grader/*.py"))
    code = b"\0".join(file.read_bytes() for file in (pathlib.Path(grading.__file__), *files))
    return hashlib.sha256(code).hexdigest() + f" {sys.version_info[:2]}"


def gold_patch(task: CodeTask, base: sandbox.Base, box: sandbox.Sandbox) -> str:
    """The repair as a submission: what it changes in tests is left out.

    Raises:
      SandboxError: the patch cannot be turned around in the task's own tree.
    """
    if task.gold_patch:
        return submission.strip(whole(task.gold_patch), frozenset(task.test_paths)).patch
    workspace = box.open(base)
    try:
        undone = workspace.run("git apply -R --whitespace=nowarn -", stdin=whole(task.setup_patch))
        if undone.exit_code:
            raise sandbox.SandboxError(
                f"the patch of {task.instance_id} cannot be undone: {undone.output[-400:]}")
        return submission.collect(workspace, frozenset(task.test_paths)).patch
    finally:
        workspace.close()


def _reason(task: CodeTask, base: sandbox.Base, box: sandbox.Sandbox) -> str:
    if not task.fail_to_pass:
        return "no test is named that fails with the bug"
    before = grading.run_tests(box, base, task.tests, task.timeout_s)
    if not before.complete:
        # Tests that the bug keeps from being found cannot be named.
        before = grading.run_tests(box, base, (), task.timeout_s)
    if not before.complete:
        return ("the tests do not run to their end in the task's own tree within "
                f"{task.timeout_s:g} s")
    good = [test for test in task.fail_to_pass if before.passed.get(test)]
    if good:
        return f"{len(good)} of FAIL_TO_PASS pass without a repair, as {good[0]!r}"
    bad = [test for test in task.pass_to_pass if not before.passed.get(test)]
    if bad:
        return f"{len(bad)} of PASS_TO_PASS fail without a repair, as {bad[0]!r}"
    after = grading.grade(box, base, task.fail_to_pass, task.pass_to_pass, task.timeout_s,
                          gold_patch(task, base, box))
    if not after.complete:
        return f"the tests do not run with the repair to their end within {task.timeout_s:g} s"
    bad = [test for test, good in after.passed.items() if not good]
    if bad:
        return f"{len(bad)} tests fail with the repair, as {bad[0]!r}"
    return "" if after.solved else "its tests pass when they are made to fail"
