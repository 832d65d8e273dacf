"""A grade is earned by a repair alone: forgeries of all kinds are not solved, crashes no grade."""

import dataclasses
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax import streams
from rime_jax.envs.codebase import environment, grading, interface, sandbox, trees
from rime_jax.envs.codebase.grader import runner
from tests.envs.codebase import repositories

REPAIR = "```bash\nsed -i 's/total = a - b/total = a + b/' alpha.py\n```"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repositories")
    library, tasks = repositories.make(folder, "alpha")
    (folder / "cache" / "environments").mkdir(parents=True)
    repositories.environment(folder / "cache" / "environments" / "alpha")
    return trees.TreeStore(folder / "cache", tasks, {"alpha": library}), tasks


def play(made, box, *replies, turns=40):
    env = environment.CodebaseEnvironment(box, made[0], turns)
    try:
        env.reset(streams.Task("t", made[1][0].instance_id))
        for reply in replies:
            turn = env.step(reply)
            if turn.done:
                break
        return env.outcome(), turn
    finally:
        env.close()


# Appended to the module under test, which the tests import.
FORGERIES = {
    "exits": "import os; os._exit(0)",
    "raises_system_exit": "import sys; sys.exit(0)",
    "patches_pytest": "import _pytest.python as p; p.Function.runtest = lambda self: None",
    "patches_outcomes_of_some": """
import _pytest.reports as r
real = r.TestReport.from_item_and_call.__func__
def from_item_and_call(cls, item, call):
    if "must_fail" not in item.nodeid: call.excinfo = None
    return real(cls, item, call)
r.TestReport.from_item_and_call = classmethod(from_item_and_call)""",
    "swaps_code_of_pytest": """
import _pytest.python as p
def pytest_pyfunc_call(pyfuncitem): return True
p.pytest_pyfunc_call.__code__ = pytest_pyfunc_call.__code__""",
    "registers_a_plugin": """
import gc, _pytest.config, pytest
class Plugin:
    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        return True if "must_fail" not in pyfuncitem.name else None
for o in gc.get_objects():
    if isinstance(o, _pytest.config.PytestPluginManager): o.register(Plugin())""",
    "expects_to_fail": """
import pytest
def add_0(a, b): pytest.xfail('so')""",
    "skips": """
import pytest
def add_0(a, b): pytest.skip('so')""",
    "prints_a_report": """
import sys
sys.stdout.write('\\n{"honest": true, "passed": {"tests/test_all.py::test_add_0": true}}\\n')""",
    "writes_a_report_everywhere_and_exits": """
import os
names = [f"tests/test_all.py::test_add_{i}" for i in range(8)]
line = "\\0".join(["0" * 32, "honest", *[x for n in names for x in (n, "1")]]).encode() + b"\\n"
for fd in range(3, 64):
    try: os.write(fd, line)
    except OSError: pass
os._exit(0)""",
    "reads_the_request_again": """
import base64, json, os, zlib
names = {f"tests/test_all.py::test_add_{i}": True for i in range(8)}
for n in [x for x in os.listdir('/proc') if x.isdigit()]:
    for path in (f'/proc/{n}/fd/0', f'/proc/{n}/environ', f'/proc/{n}/cmdline'):
        try: text = open(path).read()
        except Exception: continue
        if 'nonce' in text:
            nonce = json.loads(text)['nonce']
            report = json.dumps({'honest': True, 'passed': names}).encode()
            os.write(1, f"\\n{nonce}{base64.b64encode(zlib.compress(report)).decode()}\\n".encode())
            os.kill(os.getppid(), 9)""",
    "replaces_json_and_output": """
import io, json, os, sys
real = json.JSONEncoder.encode
json.JSONEncoder.encode = lambda s, o: real(s, o).replace('false', 'true')
json.dumps = lambda o, *a, **k: json.JSONEncoder().encode(o)
os.write = lambda fd, data: len(data)
sys.stdout = io.StringIO()""",
    "changes_the_report": """
import sys
main = sys.modules['__main__']
if hasattr(main, 'Report'):
    main.Report.pytest_runtest_logreport = lambda s, r: s.passed.update({r.nodeid: True})
if hasattr(main, 'must_fail'): main.must_fail = None""",
    "at_exit": "import atexit, os; atexit.register(lambda: os._exit(0))",
    "rewrites_the_tests": """
import os, pathlib, sys
for f in pathlib.Path('/testbed/tests').glob('*.py'):
    text = f.read_text()
    f.write_text(text.replace('assert', 'True or'))
    if 'FRESH' not in os.environ:
        sys.modules.pop('alpha', None)
        exec(compile(f.read_text().replace('import alpha', ''), str(f), 'exec'),
             sys._getframe(1).f_globals)
    f.write_text(text)""",
    "replaces_code_of_tests": """
import sys
def add_7(a, b):
    tests = sys._getframe(1).f_globals
    for name, value in list(tests.items()):
        if name.startswith('test_'): value.__code__ = (lambda: None).__code__
    return 12
def add_0(a, b):
    add_7(a, b); sys._getframe(1).f_globals['test_add_0'].__code__ = (lambda: None).__code__
    import pytest; raise pytest.xfail.Exception('x')""",
    "starts_processes_that_stay": """
import os
if os.fork() == 0:
    import time
    time.sleep(1000)
def add_0(a, b): return 0""",
    "closes_everything": "import os; os.closerange(0, 256)",
    "swaps_code_of_tests_before_they_are_collected": """
import sys, threading
tests = sys._getframe(1)
while not tests.f_code.co_filename.endswith('test_all.py'): tests = tests.f_back
def swap():
    while 'test_add_7' not in tests.f_globals: pass
    for name, value in list(tests.f_globals.items()):
        if name.startswith('test_'): value.__code__ = (lambda: None).__code__
sys.setswitchinterval(1e-6)
threading.Thread(target=swap).start()""",
    "swaps_code_of_pytest_and_puts_it_back": """
import _pytest.runner as r
real = r.check_interactive_exception.__code__, r.CallInfo.from_call.__func__.__code__
def add_0(a, b):
    import sys, pytest
    def put_back(*_): pass
    r.CallInfo.__init__.__code__ = put_back.__code__
    return 0""",
    "patches_pytest_during_the_test_alone": """
import _pytest.reports as r
real = vars(r.TestReport)['from_item_and_call']
def add_0(a, b):
    def once(cls, item, call):
        call.excinfo, r.TestReport.from_item_and_call = None, real
        return real.__func__(cls, item, call)
    r.TestReport.from_item_and_call = classmethod(once)
    return 0""",
    "finds_the_outcomes": """
import gc
for o in gc.get_objects():
    if type(o).__name__ == 'Report' and hasattr(o, '_good'):
        type(o)._good = property(lambda s: True, lambda s, value: None)
        o.__dict__.pop('_good', None)""",
    "answers_in_place_of_pytest": """
import os, sys
frame = sys._getframe()
while frame is not None:
    found = frame.f_locals
    if 'orders' in found and 'results_at' in found:
        names = [n for n in found['orders']['ids']] + ['tests/test_all.py::test_that_must_fail']
        lines = [('start', n) for n in names]
        lines += [('finish', n, '10'['must' in n], '01'['must' in n]) for n in names]
        lines += [('end', 'honest', str(len(names)), '1')]
        text = ''.join(chr(0).join([found['token'].decode(), *x]) + chr(10) for x in lines)
        os.write(found['results_at'], text.encode())
        os._exit(1)
    frame = frame.f_back""",
    "kills_the_runner": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "kills_all": "import os, signal; os.kill(-1, signal.SIGKILL)",
}


# Whatever else notices them. (What finds the outcomes is never solved, but which of the checks
# notices it depends on the draw.)
FOUND_BY_CANARIES = {"patches_pytest_during_the_test_alone", "answers_in_place_of_pytest"}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_not_solved(made, box, name):
    outcome, _ = play(
        made, box, f"```bash\ncat >> alpha.py <<'EOF'\n{FORGERIES[name]}\nEOF\n```",
        repositories.SUBMIT)
    assert (outcome.solved, outcome.reward) == (False, 0.0)
    assert outcome.message == "FAILED: some tests do not pass with the submission."
    assert outcome.metrics["forged"] == 1 or name not in FOUND_BY_CANARIES


@pytest.mark.parametrize("chance", [0.0, 0.9], ids=["canary", "normal"])
def test_a_repair_is_solved_whichever_tests_are_canaries(made, box, monkeypatch, chance):
    monkeypatch.setattr(grading._random, "random", lambda: chance)
    outcome, _ = play(made, box, REPAIR, repositories.SUBMIT)
    assert outcome.solved and outcome.metrics["forged"] == 0


def graded(answer, starting, staying):
    """The grade where `answer(test, is a canary)` says what a run reports of a test."""
    def run_tests(box, base, ids, timeout_s, patch, canaries):
        seen.append((ids, set(canaries)))
        return grading.TestRun({i: answer(i, i in canaries) for i in ids}, True, "", 1.0)

    seen = []
    with mock.patch.object(grading, "run_tests", run_tests):
        return grading.grade(None, None, starting, staying, 60, "patch"), seen


@given(st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(10, 30)), st.data())
def test_a_grade_is_true_to_honest_runs_and_sees_through_others(starting, staying, data):
    starting, staying = ([f"t.py::test_{i}" for i in sorted(s)] for s in (starting, staying))
    ids = [*starting, *staying]
    broken = data.draw(st.sets(st.sampled_from(ids), max_size=2))
    honest, seen = graded(lambda test, canary: test not in broken and not canary, starting, staying)
    assert honest.solved == (not broken) and not honest.forged
    if honest.solved:
        assert honest.passed == dict.fromkeys(ids, True)
        (first, secret), (second, others) = seen
        assert first == ids and set(starting) <= set(second) <= set(ids)
        assert secret | others >= set(starting) and not secret & others
    everything, _ = graded(lambda test, canary: True, starting, staying)
    assert everything.forged and not everything.solved
    wanted, _ = graded(lambda test, canary: test in starting or not canary, starting, staying)
    assert wanted.forged and not wanted.solved
    none_seen, _ = graded(lambda test, canary: test not in broken, starting, staying)
    assert not none_seen.solved


T = "token"
START, FINISH, END = [T, "start", "a"], [T, "finish", "a", "1", "0"], [T, "end", "honest", "1", "0"]


@pytest.mark.parametrize(("lines", "honest"), [
    ([START, FINISH, END], True),
    ([START, [T, "finish", "a", "0", "2"], [T, "end", "honest", "1", "2"]], True),
    ([START, FINISH, [T, "collection", "b"], [T, "end", "honest", "1", "1"]], True),
    ([START, FINISH, [T, "end", "changed", "1", "0"]], False),
    ([START, FINISH], False),
    ([START, END], False),
    ([FINISH, END], False),
    ([START, START, FINISH, END], False),
    ([START, FINISH, FINISH, END], False),
    ([START, FINISH, [T, "start", "b"], END], False),
    ([START, FINISH, [T, "end", "honest", "2", "0"]], False),
    ([START, FINISH, [T, "end", "honest", "1", "1"]], False),
    ([START, FINISH, END, END], False),
    ([START, FINISH, ["x"], END], False),
    ([START, FINISH, ["x", *END[1:]]], False),
    ([START, FINISH, [T, "more"], END], False),
    ([START, FINISH, [T], END], False),
    ([], False),
])
def test_what_the_tests_tell_counts_where_it_agrees(lines, honest):
    assert runner.understood(lines, T)[0] == honest


@pytest.mark.parametrize("command", [
    "echo 'def pytest_pyfunc_call(pyfuncitem): return True' > conftest.py; git add -A",
    "printf '[pytest]\\naddopts = --co\\n' > pytest.ini; git add -A; git commit -qm x",
    "echo 'import os; os._exit(0)' > sitecustomize.py; export PYTHONPATH=/testbed",
    "mkdir -p _pytest; echo > _pytest/__init__.py; echo > pytest.py; git add -A",
    "echo 'import os' > x.pth; cp x.pth ~/; mkdir -p ~/.local/lib/python3.11/site-packages; "
    "echo 'raise SystemExit' > ~/.local/lib/python3.11/site-packages/usercustomize.py",
    "sed -i 's/assert .*/pass/' tests/test_all.py", "rm -r tests",
    "pip install six; python -m pip install six; python -m ensurepip",
    "touch /opt/env/x; rm -rf /opt/env/lib; echo > /opt/env/lib/python3*/site-packages/pytest.py",
    "ls /opt/grader; echo 'print()' > /opt/grader/runner.py; cat /opt/grader/*",
    "echo pwned > /opt/pristine/alpha.py; git -C /opt/pristine commit -qam x",
])
def test_touching_the_machinery_hands_in_nothing(made, box, command):
    outcome, turn = play(made, box, f"```bash\n{command}\n```", repositories.SUBMIT)
    assert not outcome.solved and outcome.message.startswith("FAILED: the submission changes")


def test_the_grader_and_the_environment_are_out_of_the_agents_reach(made, box):
    workspace = box.open(made[0].prepare(made[1][0]))
    try:
        result = workspace.run(
            "cat /opt/grader/runner.py; touch /opt/env/x /opt/pristine/x; pip --version; "
            "python -c 'import pytest' && echo tests run; git log --oneline | wc -l; git remote")
    finally:
        workspace.close()
    lines = result.output.splitlines()
    assert sum("Read-only file system" in line for line in lines) == 2
    assert any("No such file" in line for line in lines) and lines[-2:] == ["tests run", "1"]


def test_a_repair_beside_harmless_changes_is_solved(made, box):
    outcome, _ = play(made, box, REPAIR, "```bash\nrm -r .git tests; touch x y\n```",
                      repositories.SUBMIT)
    assert outcome.solved and outcome.reward == pytest.approx(1 - 2 / 40)
    assert outcome.metrics["stripped_files"] == 1 and outcome.metrics["blind_submit"] == 1


def test_a_large_suite_is_reported_whole(made, box):
    base = made[0].prepare(made[1][0])
    base = dataclasses.replace(base, environment={**base.environment, "X": "1"})
    patch = ("diff --git a/tests/test_many.py b/tests/test_many.py\nnew file mode 100644\n"
             "--- /dev/null\n+++ b/tests/test_many.py\n@@ -0,0 +1,4 @@\n+import pytest\n"
             '+@pytest.mark.parametrize("x", range(3000))\n+def test_' + "long_" * 20 +
             "name(x):\n+    pass\n")
    run = grading.run_tests(box, base, ["tests/test_many.py"], 60, patch)
    assert run.complete and len(run.passed) == 3000 and all(run.passed.values())


def test_expected_failures_pass_and_skipped_tests_do_not(made, box):
    base = made[0].prepare(made[1][0])
    body = ["import pytest, unittest", "@pytest.mark.xfail", "def test_expected(): assert 0",
            "@pytest.mark.skip", "def test_skipped(): pass", "def test_called(): pytest.xfail('x')",
            "class TestU(unittest.TestCase):", "    def test_good(self): self.assertEqual(1, 1)",
            "    def test_bad(self): self.assertEqual(1, 2)"]
    patch = ("diff --git a/tests/test_kinds.py b/tests/test_kinds.py\nnew file mode 100644\n"
             f"--- /dev/null\n+++ b/tests/test_kinds.py\n@@ -0,0 +1,{len(body)} @@\n" +
             "".join(f"+{line}\n" for line in body))
    run = grading.run_tests(box, base, ["tests/test_kinds.py"], 60, patch)
    outcomes = {name.rpartition("::")[2]: good for name, good in run.passed.items()}
    assert run.complete and outcomes == {
        "test_expected": True, "test_skipped": False, "test_called": False, "test_good": True,
        "test_bad": False}


def test_counters_and_outcomes(made, box):
    outcome, turn = play(made, box, "no block", "```bash\ncat alpha.py\n```", "```bash\n```",
                         REPAIR, f"```bash\npython -m pytest -q && echo {interface.SENTINEL}\n```")
    metrics = outcome.metrics
    assert outcome.solved and outcome.reward == pytest.approx(1 - 4 / 40)
    assert (metrics["format_errors"], metrics["turns"]) == (2, 5)
    assert (metrics["tested_before_submit"], metrics["blind_submit"]) == (1, 0)
    assert [metrics[f"commands/{kind}"] for kind in ("read", "edit", "test", "submit")] == [
        1, 1, 0, 1]


def test_spent_turns_are_no_submission(made, box):
    outcome, turn = play(made, box, REPAIR, "nothing", turns=2)
    assert turn.done and turn.format_error == "no_action"
    assert (outcome.out_of_turns, outcome.solved, outcome.reward) == (True, False, 0.0)


class Crashing:
    """A sandbox whose workspaces fail at tests, or cannot be opened."""

    def __init__(self, inner):
        self.inner = inner

    def open(self, base):
        if any(mount.target == grading.GRADER for mount in base.mounts):
            raise sandbox.SandboxError("no room for a workspace")
        return self.inner.open(base)

    def close(self):
        pass


def test_a_grader_that_crashes_is_no_grade(made, box):
    with pytest.raises(sandbox.SandboxError, match="no room"):
        play(made, Crashing(box), REPAIR, repositories.SUBMIT)


def test_tests_that_do_not_run_without_the_submission_are_no_grade(made, box):
    broken = dataclasses.replace(
        made[1][0], instance_id="broken", fail_to_pass=("tests/none.py::test_x",), pass_to_pass=())
    store = trees.TreeStore(made[0]._cache, [broken], made[0]._libraries)
    with pytest.raises(sandbox.SandboxError, match="broken do not run in its own tree"):
        play((store, [broken]), box, REPAIR, repositories.SUBMIT)
