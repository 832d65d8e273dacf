"""Runs tests by their exact ids in fresh workspaces; with and without a submission."""

import base64
import dataclasses
import json
import pathlib
import random
import secrets
import zlib
from collections.abc import Sequence

from rime_jax.envs.codebase import sandbox, submission

GRADER = "/opt/grader"
_FOLDER = pathlib.Path(__file__).parent / "grader"


@dataclasses.dataclass(frozen=True)
class TestRun:
    """Attributes:
      passed: test id → whether all its phases passed (or failed where that was expected).
      complete: the tests ran to their end and nothing had changed the machinery.
      output: of pytest.
      seconds: wall-clock time.
    """

    __test__ = False

    passed: dict[str, bool]
    complete: bool
    output: str
    seconds: float

    def all_passed(self, ids: Sequence[str]) -> bool:
        return self.complete and all(self.passed.get(name, False) for name in ids)


@dataclasses.dataclass(frozen=True)
class Grade:
    """Attributes:
      solved: every test passed, and every canary failed.
      complete: as in `TestRun`, of all runs.
      forged: a canary passed: the submission makes tests pass whatever they find.
      passed: test id → whether it passed where it was no canary, as far as it was run.
      output: of pytest in the last run.
    """

    solved: bool
    complete: bool
    forged: bool
    passed: dict[str, bool]
    output: str


# Tests of PASS_TO_PASS that are canaries beside those that must begin to pass.
_CANARIES = 8
_random = random.SystemRandom()


def grade(
    box: sandbox.Sandbox, base: sandbox.Base, fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str], timeout_s: float, patch: str,
) -> Grade:
    """Grades a submission in two fresh workspaces and processes.

    Canaries are tests that the grader makes fail after their own body, each named in secret; they
    are reported as failed if reports are true. In the first run they are a random part of
    FAIL_TO_PASS, beside all of PASS_TO_PASS. In the second they are the rest of FAIL_TO_PASS and a
    few of PASS_TO_PASS. So each test is a normal one once, and whoever reports all as passed, or
    all that must be, is found out. A run that shows that nothing is solved is the last one.

    Args:
      box, base, timeout_s, patch: as in `run_tests`.
      fail_to_pass, pass_to_pass: ids of tests.

    Raises:
      SandboxError: the sandbox failed.
    """
    secret = [test for test in fail_to_pass if _random.random() < 0.5]
    rest = [test for test in fail_to_pass if test not in secret]
    few = _random.sample(list(pass_to_pass), min(_CANARIES, len(pass_to_pass)))
    solved, forged = True, False
    passed: dict[str, bool] = {}
    for normal, canaries in (([*rest, *pass_to_pass], secret), (secret, [*rest, *few])):
        chosen = {*normal, *canaries}
        ids = [test for test in (*fail_to_pass, *pass_to_pass) if test in chosen]
        run = run_tests(box, base, ids, timeout_s, patch, canaries=canaries)
        passed |= {test: run.passed[test] for test in normal if test in run.passed}
        forged = any(run.passed.get(test, False) for test in canaries)
        failing = all(run.passed.get(test) is False for test in canaries)
        solved = run.all_passed(normal) and failing
        if not solved:
            break
    return Grade(solved, run.complete, forged, passed, run.output)


def run_tests(
    box: sandbox.Sandbox, base: sandbox.Base, ids: Sequence[str], timeout_s: float,
    patch: str = "", arguments: Sequence[str] = (), canaries: Sequence[str] = (),
) -> TestRun:
    """Opens a workspace, applies a patch, runs tests, closes it.

    Args:
      box: the sandbox.
      base: with a `python` that has pytest on its PATH. The grader is added here alone: agents do
        not see it.
      ids: pytest's node ids; none: all tests that pytest finds.
      timeout_s: of the tests.
      patch: for `git apply`; one that does not apply makes the run incomplete.
      arguments: further ones of pytest.
      canaries: those of `ids` that are made to fail.

    Raises:
      SandboxError: the sandbox failed.
    """
    grader = sandbox.Mount(_FOLDER, GRADER)
    workspace = box.open(dataclasses.replace(base, mounts=(*base.mounts, grader)))
    try:
        if patch:
            applied = workspace.run("git apply --whitespace=nowarn -", stdin=patch)
            if applied.exit_code:
                return TestRun({}, False, applied.output, applied.seconds)
        nonce = secrets.token_hex(16)
        request = {"nonce": nonce, "ids": list(ids), "canaries": list(canaries),
                   "arguments": list(arguments), "machinery": submission.TEST_FORMS}
        result = workspace.run(
            f"python -P {GRADER}/runner.py", timeout_s=timeout_s, stdin=json.dumps(request))
    finally:
        workspace.close()
    output, found, report = result.output.rpartition(nonce)
    if result.status != "done" or not found:
        return TestRun({}, False, result.output, result.seconds)
    values = json.loads(zlib.decompress(base64.b64decode(report.split("\n", 1)[0])))
    return TestRun(values["passed"], values["honest"], output, result.seconds)
