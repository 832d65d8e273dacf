"""Runs tests in a workspace and reports each; stands there read-only, imports nothing of ours.

Standard input is a JSON object {nonce, ids, arguments}. The last thing printed is a line of the
nonce and a JSON object {test id: passed}. The code under test runs in this process, so it could try
to make tests pass by changing pytest: a test that must fail runs among them, and pytest's own
functions are compared with what they were before that code was imported.
"""

import json
import os
import sys
import types

import _pytest.python
import _pytest.reports
import _pytest.runner
import _pytest.terminal
import pluggy
import pytest

CANARY = "test_that_must_fail"


def fingerprint() -> list:
    found = []
    for module in (_pytest.python, _pytest.reports, _pytest.runner, _pytest.terminal, pluggy._hooks,
                   pluggy._callers, pluggy._manager):
        for name, value in sorted(vars(module).items()):
            if isinstance(value, types.FunctionType):
                found.append((module.__name__, name, id(value.__code__)))
            elif isinstance(value, type):
                found += [(module.__name__, name, inner, id(method.__code__))
                          for inner, method in sorted(vars(value).items())
                          if isinstance(method, types.FunctionType)]
    return found


def must_fail():
    raise AssertionError("shows that failures are still seen")


class Report:
    """Collects the outcome of every phase of every test."""

    def __init__(self):
        self.passed = {}

    def pytest_collection_modifyitems(self, items):
        module = items[0].getparent(pytest.Module) if items else None
        if module is not None:
            items.append(pytest.Function.from_parent(module, name=CANARY, callobj=must_fail))

    def pytest_runtest_logreport(self, report):
        good = report.outcome == "passed" or hasattr(report, "wasxfail")
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and good


def main(dumps=json.dumps, write=os.write, exit_=os._exit) -> None:
    request = json.load(sys.stdin)
    out, before, report = os.dup(1), fingerprint(), Report()
    pytest.main(
        [*request["ids"], "-p", "no:cacheprovider", "-q", "--no-header", "--tb=short",
         "--continue-on-collection-errors", *request["arguments"]],
        plugins=[report])
    canaries = [name for name in report.passed if name.endswith(f"::{CANARY}")]
    honest = [report.passed.pop(name) for name in canaries] == [False] and fingerprint() == before
    line = f"\n{request['nonce']}{dumps({'honest': honest, 'passed': report.passed})}\n"
    write(out, line.encode())
    exit_(0)


if __name__ == "__main__":
    main()
