"""One repair of a repository, from the statement to the grade. See `envs.base.Environment`."""

import collections

from rime_jax import streams
from rime_jax.envs import base as env_base
from rime_jax.envs.codebase import grading, interface, sandbox, submission, trees


class CodebaseEnvironment:
    """A workspace for one task; a submission is graded in another one."""

    inline = False

    def __init__(self, box: sandbox.Sandbox, store: trees.TreeStore, turns: int = interface.TURNS):
        """Args:
          box: shared by all environments.
          store: finds tasks and their prepared trees; shared too.
          turns: replies of the actor; the one that submits counts.
        """
        self._box, self._store, self._limit = box, store, turns
        self._workspace: sandbox.Workspace | None = None
        self._turns = 0
        self._submission: submission.Submission | None = None
        self._counts: collections.Counter[str] = collections.Counter()
        self._tested_since_edit = False

    def reset(self, task: streams.Task) -> str:
        self._task = self._store.task(task.payload)
        self._base = self._store.prepare(self._task)
        self._workspace = self._box.open(self._base)
        return interface.opening(self._task.statement, self._limit)

    def step(self, reply: str) -> env_base.Turn:
        self._turns += 1
        left = self._limit - self._turns
        parsed = interface.parse(reply)
        if parsed.command is None:
            self._counts["format_errors"] += 1
            return env_base.Turn(interface.format_message(parsed.error, left), left == 0,
                                 parsed.error)
        self._counts[f"commands/{interface.kind(parsed.command)}"] += 1
        # What is joined with a submission counts as well.
        kind = interface.kind(parsed.command.replace(interface.SENTINEL, ""))
        if kind in ("test", "edit"):
            self._tested_since_edit = kind == "test"
        self._counts["tested"] |= kind == "test"
        result = self._workspace.run(parsed.command)
        done, hint = interface.submitted(parsed.command, result)
        if done:
            self._submission = submission.collect(
                self._workspace, frozenset(self._task.test_paths))
            return env_base.Turn("", True)
        return env_base.Turn(interface.observation(result, left, hint), left == 0)

    def outcome(self) -> env_base.Outcome:
        handed_in = self._submission is not None
        solved = handed_in and self._grade(self._submission.patch)
        reward = 1 - (self._turns - 1) / self._limit if solved else 0.0
        return env_base.Outcome(
            reward=reward, performance=reward, solved=solved, out_of_turns=not handed_in,
            message=self._message(solved, handed_in), metrics=self._metrics(handed_in))

    def close(self) -> None:
        if self._workspace is not None:
            self._workspace.close()

    def _grade(self, patch: str) -> bool:
        """Raises:
          SandboxError: the tests do not even run without the submission.
        """
        task, base = self._task, self._base
        if not patch:
            return False
        grade = grading.grade(
            self._box, base, task.fail_to_pass, task.pass_to_pass, task.timeout_s, patch)
        self._counts["forged"] += grade.forged
        if not grade.complete:
            # Is it the submission that breaks the test run, or this machine?
            without = grading.run_tests(self._box, base, task.tests, task.timeout_s)
            if not without.complete:
                raise sandbox.SandboxError(
                    f"the tests of {task.instance_id} do not run in its own tree: "
                    f"{without.output[-500:]}")
        return grade.solved

    def _message(self, solved: bool, handed_in: bool) -> str:
        if not handed_in:
            return "FAILED: the turns were spent before anything was submitted."
        if solved:
            return "PASSED: the repair makes all tests pass."
        if self._submission.problem:
            return f"FAILED: {self._submission.problem}, so nothing was handed in."
        if not self._submission.patch:
            what = "only tests" if self._submission.stripped else "no tracked file"
            return f"FAILED: the submission changes {what}."
        return "FAILED: some tests do not pass with the submission."

    def _metrics(self, handed_in: bool) -> dict[str, float]:
        kinds = ("read", "edit", "test", "submit", "other")
        found = {f"commands/{kind}": float(self._counts[f"commands/{kind}"]) for kind in kinds}
        return found | {
            "turns": float(self._turns),
            "format_errors": float(self._counts["format_errors"]),
            "tested_before_submit": float(handed_in and self._counts["tested"]),
            "blind_submit": float(handed_in and not self._tested_since_edit),
            "stripped_files": float(len(self._submission.stripped) if handed_in else 0),
            "forged": float(self._counts["forged"]),
        }

