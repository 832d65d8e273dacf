"""The process in which tests run; started by `runner.py`, imports nothing of ours.

    python -P tests.py ORDERS RESULTS      (descriptors)

Code under test could change pytest from within, or a test beside itself. Against that stand:
- canaries: a test that must fail runs among the others, and some of the ordered tests are made to
  fail after their own body; who makes failures pass makes those pass (`grading.py`);
- what pytest and unittest consist of is compared with what it was before that code was imported;
- assigning the code of a test or of the machinery is noticed, also where it is put back;
- each start and finish is told when it happens, so that the counts must agree (`runner.py`).

What remains: this is one process. Code that knows this file can find these objects, tell canaries
from tests and answer for each as expected. So the file is out of sight of the agent, and what is
learned by trial and error does not get through. Nor is it the grader's business whether a repair is
general: hard-coded answers, or values that equal everything, pass the tests that they pass.
"""

import builtins
import json
import os
import sys
import types
import unittest.case
import unittest.suite
from collections.abc import Callable

import _pytest.python  # noqa: F401
import _pytest.unittest  # noqa: F401
import pytest

CANARY = "test_that_must_fail"


def fingerprint() -> list:
    """All functions and classes of the machinery, themselves: an address might be used again."""
    found = []
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in ("_pytest", "pluggy", "pytest") or module in (
                builtins, unittest.case, unittest.suite):
            found += _members(module)
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == name:
                    found += _members(value)
    return found


def same(before: list, after: list) -> bool:
    now = {key: parts for key, parts in after}
    return all(key in now and len(now[key]) == len(parts)
               and all(a is b for a, b in zip(parts, now[key], strict=True))
               for key, parts in before)


def _members(owner) -> list:
    return [((id(owner), name), _parts(value)) for name, value in list(vars(owner).items())
            if callable(value) or isinstance(value, (classmethod, staticmethod, property))]


def _parts(value) -> tuple:
    inner = getattr(value, "__func__", getattr(value, "fget", value))
    if isinstance(inner, types.FunctionType):
        return value, inner, inner.__code__, inner.__defaults__
    return value, inner


def must_fail():
    raise AssertionError("shows that failures are still seen")


class CodeWatch:
    """Notices that the code of a function of the tests or of the machinery is assigned."""

    def __init__(self, machinery: list):
        """Args:
          machinery: a fingerprint; it keeps codes alive, so that no other gets the id of one.
        """
        self.honest = True
        self._codes = {id(part) for _, parts in machinery for part in parts
                       if isinstance(part, types.CodeType)}
        self._folder = os.getcwd() + os.sep
        sys.addaudithook(self._hear)

    def _hear(self, event, arguments):
        if event == "object.__setattr__" and arguments[1] == "__code__":
            code = arguments[0].__code__
            file = code.co_filename
            of_tests = file.startswith(self._folder) and "test" in file[len(self._folder):]
            if of_tests or id(code) in self._codes:
                self.honest = False


class Report:
    """Tells the outcome of every test as soon as there is one."""

    def __init__(self, conftests: list[str], canaries: list[str], tell: Callable[..., None]):
        self.honest, self.counts = False, ("", "")
        self._tell = tell
        self._good, self._failed = True, 0
        self._conftests = {os.path.abspath(path) for path in conftests}
        self._canaries = {*canaries, CANARY}
        self._expected_to_fail: set[str] = set()
        self._codes: list[tuple] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session):
        self._manager = session.config.pluginmanager
        self._plugins = set(map(id, self._manager.get_plugins()))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        module = items[0].getparent(pytest.Module) if items else None
        if module is not None:
            items.append(pytest.Function.from_parent(module, name=CANARY, callobj=must_fail))
        for item in items:
            # A call of pytest.xfail while the test runs is no expectation of the test's; and of a
            # canary nothing is expected but to fail.
            if item.get_closest_marker("xfail") and item.nodeid not in self._canaries:
                self._expected_to_fail.add(item.nodeid)
            code = _code(item)
            if code is not None:
                self._codes.append((item, code))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        result = yield
        if item.nodeid in self._canaries:
            must_fail()
        return result

    def pytest_runtest_logstart(self, nodeid):
        self._good, self._failed = True, 0
        self._tell("start", nodeid)

    def pytest_runtest_logreport(self, report):
        expected = hasattr(report, "wasxfail") and report.nodeid in self._expected_to_fail
        self._good &= report.outcome == "passed" or expected
        self._failed += report.outcome == "failed"

    def pytest_runtest_logfinish(self, nodeid):
        self._tell("finish", nodeid, "1" if self._good else "0", str(self._failed))

    def pytest_collectreport(self, report):
        if report.failed:
            self._tell("collection", report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        added = [plugin for plugin in self._manager.get_plugins()
                 if id(plugin) not in self._plugins]
        self.honest = all(
            getattr(plugin, "__file__", None) in self._conftests for plugin in added
        ) and all(_code(item) is code for item, code in self._codes)
        self.counts = str(session.testscollected), str(session.testsfailed)


def _code(item):
    inner = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
    return getattr(inner, "__code__", None)


def main(write=os.write, exit_=os._exit, join=b"\0".join, encode=str.encode) -> None:
    orders_at, results_at = int(sys.argv[1]), int(sys.argv[2])
    with open(orders_at, "rb") as file:
        orders = json.loads(file.read())
    token = encode(orders.pop("token"))

    def tell(*fields: str) -> None:
        line = join([token, *(encode(field, "utf-8", "replace") for field in fields)])
        line = line.replace(b"\n", b" ") + b"\n"
        while line:
            line = line[write(results_at, line):]

    report, machinery, same_ = (
        Report(orders["conftests"], orders["canaries"], tell), fingerprint, same)
    before = machinery()
    watch = CodeWatch(before)
    sys.argv[1:] = []
    # Nothing here can be found by its name.
    sys.modules["__main__"] = types.ModuleType("__main__")
    code = pytest.main(
        [*orders["ids"], "-p", "no:cacheprovider", "-q", "--no-header", "--tb=short",
         "--continue-on-collection-errors", "--maxfail=0", *orders["arguments"]],
        plugins=[report])
    honest = report.honest and watch.honest and same_(before, machinery())
    try:
        sys.stdout.flush()
    except Exception:
        pass  # A test closed it.
    tell("end", "honest" if honest else "changed", *report.counts)
    exit_(code)


if __name__ == "__main__":
    main()
