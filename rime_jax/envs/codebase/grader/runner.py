"""Runs tests in a workspace and reports each; stands there read-only, imports nothing of ours.

    python -P runner.py < REQUEST

The request is a JSON object {nonce, ids, canaries, arguments, machinery: [folders, forms of
names]}. The last thing printed is a line of the nonce and a report (`_line`).

The code under test runs in the process of the tests, and it was written by somebody who is paid for
passing them. So that process is a child (`tests.py`), which never holds the nonce: this one does,
which other processes can neither read nor trace, and in which no foreign code runs. It believes the
child only where the facts agree: each test that finishes was started, once; as many finish as were
collected; as many failures are told as pytest counted; the exit status is that of failed tests (one
always fails). It says, too, whether a file that decides how tests run was touched meanwhile.
"""

import base64
import ctypes
import fnmatch
import json
import os
import secrets
import sys
import zlib

PR_SET_DUMPABLE = 4
# Exit status of pytest.
TESTS_FAILED = 1
CANARY = "test_that_must_fail"  # As in tests.py, with which nothing is shared.


def main() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0)
    to_read, to_write = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_DUMPABLE, 1)
        os.close(to_read[1])
        os.close(to_write[0])
        _become_tests(to_read[0], to_write[1])
    os.close(to_read[0])
    os.close(to_write[1])
    request = json.loads(sys.stdin.buffer.read())
    try:
        # Whoever opens the standard input of a process here finds nothing in it.
        os.ftruncate(0, 0)
    except OSError:
        pass  # A pipe, which is empty now.
    before = _machinery(request["machinery"])
    token = secrets.token_hex(16)
    orders = {"token": token, "ids": request["ids"], "canaries": request["canaries"],
              "arguments": request["arguments"],
              "conftests": [path for path in before if path.endswith("conftest.py")]}
    with open(to_read[1], "wb") as file:
        file.write(json.dumps(orders).encode())
    honest, passed = understood(_lines(to_write[0], token), token)
    own = [passed.pop(name) for name in list(passed) if name.endswith(f"::{CANARY}")]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    honest = (honest and own == [False] and code == TESTS_FAILED
              and _machinery(request["machinery"]) == before)
    os.write(1, _line(request["nonce"], honest, passed))
    os._exit(0)


def _become_tests(orders: int, results: int) -> None:
    os.set_inheritable(orders, True)
    os.set_inheritable(results, True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests.py")
    os.execv(sys.executable, [sys.executable, "-P", file, str(orders), str(results)])


def _lines(descriptor: int, token: str) -> list[list[str]]:
    """What the tests told, up to the line that ends it."""
    # Not to the end of the pipe: what the tests left running may hold it open.
    data = b""
    found: list[list[str]] = []
    while not found or found[-1][:2] != [token, "end"]:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            break
        *whole, data = (data + piece).split(b"\n")
        found += [line.decode("utf-8", "replace").split("\0") for line in whole]
    return found


def understood(lines: list[list[str]], token: str) -> tuple[bool, dict[str, bool]]:
    """(whether all that the tests told agrees, outcomes of those that finished)."""
    started, failures = set(), 0
    passed: dict[str, bool] = {}
    last: list[str] = []
    for head, *fields in lines:
        kind, name = (*fields, "", "")[:2]
        fresh = name not in started
        if head != token or last:
            return False, {}
        if kind == "start" and fresh:
            started.add(name)
        elif kind == "finish" and len(fields) == 4 and not fresh and name not in passed:
            passed[name] = fields[2] == "1"
            failures += int(fields[3])
        elif kind == "collection":
            failures += 1
        elif kind == "end" and len(fields) == 4:
            last = fields[1:]
        else:
            return False, passed
    agrees = last == ["honest", str(len(passed)), str(failures)]
    return agrees and len(started) == len(passed), passed


def _machinery(forms: list[list[str]]) -> dict[str, tuple]:
    """Files that are tests or decide how tests run: what changes whenever they are written.

    The time of change cannot be set back, so putting the old content back does not help.
    """
    folders, names = forms
    found = {}
    for place, inner, files in os.walk("."):
        inner[:] = [name for name in inner if name not in (".git", "__pycache__")]
        inside = not set(place.split("/")).isdisjoint(folders)
        for name in files:
            if not name.endswith(".pyc") and (
                    inside or any(fnmatch.fnmatch(name, form) for form in names)):
                stat = os.lstat(os.path.join(place, name))
                found[os.path.normpath(os.path.join(place, name))] = (
                    stat.st_ino, stat.st_size, stat.st_ctime_ns)
    return found


def _line(nonce: str, honest: bool, passed: dict[str, bool]) -> bytes:
    report = json.dumps({"honest": honest, "passed": passed}).encode()
    return f"\n{nonce}{base64.b64encode(zlib.compress(report)).decode()}\n".encode()


if __name__ == "__main__":
    main()
