"""A submission applied to the untouched tree is the agent's tree with its tests put back."""

import json
import os

import hypothesis
import pytest
from hypothesis import strategies as st

from rime_jax.envs.codebase import sandbox, submission
from tests.envs.codebase.test_submission import git

FILES = {
    "a.py": b"one\ntwo\nthree\n", "b c.py": b"x", "dos.py": b"a\r\nb\r\n",
    "d\u00e9j\u00e0 \"vu\"\\.py": b"x\n", "two\nlines\t.py": b"x\n", "empty": b"",
    "mixed.txt": b"a\r\nb\nc\r", "binary": bytes(range(256)) * 3,
    "pkg/gone.py": b"x\n", "pkg/core.py": b"y\n" * 40, "pkg/conftest.py": b"c\n",
    "pkg/tests/test_a.py": b"t\n", "pkg/tests/data \u00e9": b"t\n", "pkg/x_test.py": b"t\n",
    "src/testutil.py": b"u\n", "tool.sh": b"#!/bin/sh\n", "setup.cfg": b"[s]\n",
}
LINKS = {"link": "a.py", "pkg/tests/link": "../core.py"}
# Makes changes and prints what is there then, as JSON.
PROGRAM = r"""
import json, os, shutil, subprocess, sys
def look():
    found = {}
    for folder, names, files in os.walk("."):
        names[:] = [n for n in names if n != ".git"]
        for name in files + names:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[path[2:]] = ["link", os.readlink(path)]
            elif os.path.isfile(path):
                mode = "exec" if os.stat(path).st_mode & 0o100 else "file"
                found[path[2:]] = [mode, open(path, "rb").read().decode("latin-1")]
    return found
def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)
def place(path):
    while path := os.path.dirname(path):
        if os.path.islink(path) or os.path.isfile(path):
            os.remove(path)
for verb, path, more in json.load(sys.stdin):
    if verb in ("write", "link", "folder", "repository", "move"):
        place(path)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if verb == "move":
            if os.path.isfile(more) and not os.path.islink(more) and not os.path.isdir(path):
                os.replace(more, path)
            continue
        if verb != "write" or not os.path.isfile(path) or os.path.islink(path):
            remove(path)
    if verb == "write":
        open(path, "wb").write(more.encode("latin-1"))
    elif verb == "link":
        os.symlink(more, path)
    elif verb == "folder":
        os.makedirs(path)
        open(path + "/inside.py", "w").write("inside")
    elif verb == "repository":
        os.makedirs(path)
        subprocess.run("git init -q; git -c user.name=x -c user.email=x commit -q --allow-empty "
                       "-m x", shell=True, cwd=path, check=True)
    elif verb == "remove":
        remove(path)
    elif verb == "mode" and os.path.isfile(path):
        os.chmod(path, 0o755 if more else 0o644)
    elif verb == "git":
        subprocess.run(more, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(json.dumps(look()))
"""


def _base(tree, attributes):
    for name, data in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    for name, target in LINKS.items():
        (tree / name).symlink_to(target)
    (tree / "tool.sh").chmod(0o755)
    if attributes:
        (tree / ".gitattributes").write_text(attributes)
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "all")
    if os.geteuid() == 0:
        for path in [tree, *tree.rglob("*")]:
            os.chown(path, sandbox.USER, sandbox.USER, follow_symlinks=False)
    return sandbox.Base(tree, (sandbox.Mount(tree, submission.PRISTINE),))


@pytest.fixture(scope="module", params=["", "* text=auto\n*.sh text eol=lf\n"],
                ids=["plain", "attributes"])
def base(request, tmp_path_factory):
    return _base(tmp_path_factory.mktemp("tree"), request.param)


_PATHS = st.sampled_from([*FILES, *LINKS, "new.py", "pkg/tests/new \"x\".py", "pkg"])
_LINES = st.lists(st.sampled_from([
    "one", "two", "", "diff --git a/tests/x b/tests/x", "--- a/a.py", "+++ b/tests/a.py",
    "rename from tests/x", "@@ -1 +1 @@", "GIT binary patch", "\\ No newline at end of file",
    "caf\xe9\r", "\f", "\x85", "-x", " "]), max_size=6)
_CONTENTS = st.one_of(
    st.builds("".join, st.lists(st.sampled_from(["\0", "\xff", "x", "\n"]), max_size=30)),
    st.builds(lambda lines, end: "\n".join(lines) + end, _LINES, st.sampled_from(["", "\n"])))
_CHANGES = st.lists(st.one_of(
    st.tuples(st.just("write"), _PATHS, _CONTENTS),
    st.tuples(st.sampled_from(["remove", "folder", "repository"]), _PATHS, st.just("")),
    st.tuples(st.just("mode"), _PATHS, st.booleans()),
    st.tuples(st.just("link"), _PATHS, st.sampled_from(["a.py", "/etc/passwd", "no where", ".."])),
    st.tuples(st.just("move"), _PATHS, _PATHS),
    st.tuples(st.just("git"), st.just(""), st.sampled_from([
        "git add -A", "git add -A; git commit -qm x", "git stash", "git rm -q --cached a.py",
        "git submodule add ./pkg/sub sub", "rm -rf .git"]))), max_size=8)


@hypothesis.given(changes=_CHANGES)
@hypothesis.settings(max_examples=15, deadline=None)
def test_a_submission_applied_is_the_tree_with_its_tests_put_back(box, base, changes):
    untouched, left, found = _played(box, base, changes)
    assert found.problem == ""
    expected = {path: untouched[path] if submission.is_test(path) else left.get(path)
                for path in untouched}
    workspace = box.open(base)
    try:
        if found.patch:
            done = workspace.run("git apply --whitespace=nowarn -", stdin=found.patch)
            assert done.exit_code == 0, done.output
        actual = _look(workspace, [])
    finally:
        workspace.close()
    expected = {path: value for path, value in expected.items() if value is not None}
    if ".gitattributes" in untouched:
        # Git itself ends lines of text as it is told to.
        untouched, expected, actual = map(_with_line_feeds, (untouched, expected, actual))
    assert actual == expected
    assert set(found.paths) == {path for path in untouched
                                if expected.get(path) != untouched[path]}


def _played(box, base, changes):
    workspace = box.open(base)
    try:
        untouched = _look(workspace, [])
        left = _look(workspace, changes)
        return untouched, left, submission.collect(workspace)
    finally:
        workspace.close()


def _look(workspace, changes):
    workspace.run("cat > /tmp/program.py", stdin=PROGRAM)
    done = workspace.run("python3 /tmp/program.py", stdin=json.dumps(changes))
    assert done.exit_code == 0, done.output
    return json.loads(done.output.splitlines()[-1])


def _with_line_feeds(tree):
    return {path: [kind, data if kind == "link" or "\0" in data else data.replace("\r\n", "\n")]
            for path, (kind, data) in tree.items()}
