"""benchmarks/soak.py: whom it hits, and what it calls different."""

import pathlib
import subprocess
import sys
import time

from benchmarks import soak
from tests import launched


def program_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text()
    except OSError:  # It has ended meanwhile.
        return ""


def test_the_training_under_a_loop_is_found_and_nothing_else(tmp_path):
    program = tmp_path / "rime_jax.train"
    program.write_text("import time; time.sleep(60)")
    for command, name, found in (
            ([sys.executable, program], "python", True), (["sleep", "60"], "sleep", False)):
        loop = subprocess.Popen([launched.ROOT / "launch/until_done.sh", *command])
        try:
            listed = pathlib.Path(f"/proc/{loop.pid}/task/{loop.pid}/children")
            deadline = time.monotonic() + 30
            # Until the loop has a child that has become the command.
            while not any(program_of(pid).startswith(name) for pid in listed.read_text().split()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            (child,) = listed.read_text().split()
            assert soak.training_of(loop.pid) == (int(child) if found else None)
        finally:
            loop.terminate()
            loop.wait()


def test_what_differs_or_is_missing_is_named():
    one = {"step 1: a": 1.0, "step 2: a": 2.0, "final": {"x": 1}}
    assert soak.compare(one, dict(one)) == []
    assert soak.compare(one, one | {"step 2: a": 2.5, "step 3: a": 0.0}) == [
        "step 2: a", "step 3: a"]
