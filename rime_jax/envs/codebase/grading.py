"""Runs tests by their exact ids in a fresh workspace; with and without a submission."""

import base64
import dataclasses
import json
import pathlib
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


def run_tests(
    box: sandbox.Sandbox, base: sandbox.Base, ids: Sequence[str], timeout_s: float,
    patch: str = "", arguments: Sequence[str] = (),
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
        request = {"nonce": nonce, "ids": list(ids), "arguments": list(arguments),
                   "machinery": submission.TEST_FORMS}
        result = workspace.run(
            f"python -P {GRADER}/runner.py", timeout_s=timeout_s, stdin=json.dumps(request))
    finally:
        workspace.close()
    output, found, report = result.output.rpartition(nonce)
    if result.status != "done" or not found:
        return TestRun({}, False, result.output, result.seconds)
    values = json.loads(zlib.decompress(base64.b64decode(report.split("\n", 1)[0])))
    return TestRun(values["passed"], values["honest"], output, result.seconds)
