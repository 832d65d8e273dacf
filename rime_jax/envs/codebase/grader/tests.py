"""The process in which tests run; started by `runner.py`, imports nothing of ours.

    python -P tests.py ORDERS RESULTS      (descriptors)

Code under test could change pytest from within, or a test beside itself. So a test that must fail
runs among the others, and what pytest and unittest consist of is compared with what it was before
that code was imported. Who knows this file and works at it gets through; it is out of sight of the
agent, and what is learned by trial and error does not.
"""

import builtins
import json
import os
import sys
import types
import unittest.case
import unittest.suite

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


class Report:
    """Collects the outcome of every phase of every test."""

    def __init__(self, conftests: list[str]):
        self.passed: dict[str, bool] = {}
        self.honest = True
        self._conftests = {os.path.abspath(path) for path in conftests}
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
            # A call of pytest.xfail while the test runs is no expectation of the test's.
            if item.get_closest_marker("xfail"):
                self._expected_to_fail.add(item.nodeid)
            code = _code(item)
            if code is not None:
                self._codes.append((item, code))

    def pytest_runtest_logreport(self, report):
        expected = hasattr(report, "wasxfail") and report.nodeid in self._expected_to_fail
        good = report.outcome == "passed" or expected
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and good

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        added = [plugin for plugin in self._manager.get_plugins()
                 if id(plugin) not in self._plugins]
        self.honest = all(
            getattr(plugin, "__file__", None) in self._conftests for plugin in added
        ) and all(_code(item) is code for item, code in self._codes)


def _code(item):
    inner = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
    return getattr(inner, "__code__", None)


def main(write=os.write, exit_=os._exit, join=b"\0".join, encode=str.encode) -> None:
    orders_at, results_at = int(sys.argv[1]), int(sys.argv[2])
    with open(orders_at, "rb") as file:
        orders = json.loads(file.read())
    token = encode(orders.pop("token"))
    report, machinery, same_ = Report(orders["conftests"]), fingerprint, same
    before = machinery()
    sys.argv[1:] = []
    # Nothing here can be found by its name.
    sys.modules["__main__"] = types.ModuleType("__main__")
    pytest.main(
        [*orders["ids"], "-p", "no:cacheprovider", "-q", "--no-header", "--tb=short",
         "--continue-on-collection-errors", *orders["arguments"]],
        plugins=[report])
    canaries = [name for name in report.passed if name.endswith(f"::{CANARY}")]
    failed = [report.passed.pop(name) for name in canaries] == [False]
    honest = failed and report.honest and same_(before, machinery())
    fields = [token, b"honest" if honest else b"changed"]
    for name, good in report.passed.items():
        fields += [encode(name, "utf-8", "replace").replace(b"\n", b" "), b"1" if good else b"0"]
    line = join(fields) + b"\n"
    try:
        sys.stdout.flush()
    except Exception:
        pass  # A test closed it.
    while line:
        line = line[write(results_at, line):]
    exit_(0)


if __name__ == "__main__":
    main()
