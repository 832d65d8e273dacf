"""What of the changes in a workspace counts: with names, bytes and tricks of all kinds."""

import os
import pathlib
import subprocess

import hypothesis
import pytest
from hypothesis import strategies as st

from rime_jax.envs.codebase import sandbox, submission

FILES = {
    "a.py": b"one\ntwo\n", "b c.py": b"x\n", "d\u00e9j\u00e0 \"vu\".py": b"x\n",
    "latin.py": "caf\u00e9\n".encode("latin-1"), "dos.py": b"a\r\nb\r\n",
    "binary": bytes(range(256)),
    "pkg/gone.py": b"x\n", "tests/test_a.py": b"t\n", "tests \"q\"/tests/h\u00e9.py": b"t\n",
    "conftest.py": b"c\n", "pkg/setup.cfg": b"s\n", "tool.sh": b"#!/bin/sh\n",
}


def git(where, *arguments):
    return subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.autocrlf=false",
         *arguments], cwd=where, check=True, stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}).stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    tree = tmp_path_factory.mktemp("tree")
    for name, data in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "all")
    if os.geteuid() == 0:
        for path in [tree, *tree.rglob("*")]:
            os.chown(path, sandbox.USER, sandbox.USER, follow_symlinks=False)
    return sandbox.Base(tree, (sandbox.Mount(tree, submission.PRISTINE),))


@pytest.fixture
def hand_in(box, base):
    def collect(command, paths=frozenset()):
        workspace = box.open(base)
        try:
            workspace.run(command)
            return submission.collect(workspace, paths)
        finally:
            workspace.close()
    return collect


@pytest.fixture
def applied(box, base):
    def apply(patch, show):
        workspace = box.open(base)
        try:
            done = workspace.run("git apply --whitespace=nowarn -", stdin=patch)
            assert done.exit_code == 0, done.output
            return workspace.run(show).output
        finally:
            workspace.close()
    return apply


def test_changed_files_of_any_name_and_content_come_through(hand_in, applied):
    found = hand_in(
        "echo more | tee -a a.py 'b c.py' d*vu*.py dos.py; printf '\\xe9\\n' >> latin.py; "
        "printf '\\0\\1\\xff' >> binary; rm pkg/gone.py; chmod +x tool.sh")
    assert set(found.paths) == {"a.py", "b c.py", "d\u00e9j\u00e0 \"vu\".py", "latin.py", "dos.py",
                                "binary", "pkg/gone.py", "tool.sh"}
    assert (found.stripped, found.problem) == ((), "")
    shown = applied(found.patch, "cat a.py b*c.py dos.py | od -c | md5sum; md5sum < latin.py; "
                                 "md5sum < binary; test -x tool.sh && ls pkg")
    expected = subprocess.run(
        ["bash", "-c",
         "printf 'one\\ntwo\\nmore\\nx\\nmore\\na\\r\\nb\\r\\nmore\\n' | od -c | md5sum; "
         "printf 'caf\\xe9\\n\\xe9\\n' | md5sum"], stdout=subprocess.PIPE, text=True).stdout
    assert shown.startswith(expected) and shown.endswith("setup.cfg\n")


def test_tests_and_what_decides_how_they_run_do_not_count(hand_in):
    found = hand_in(
        "echo x | tee -a a.py tests/test_a.py tests*/tests/* conftest.py pkg/setup.cfg; "
        "git mv tests/test_a.py moved.py; git add -A; git commit -qm x --author='a <a@a>'",
        frozenset({"b c.py"}))
    assert found.paths == ("a.py",)
    assert set(found.stripped) == {"tests/test_a.py", "tests \"q\"/tests/h\u00e9.py", "conftest.py",
                                   "pkg/setup.cfg"}
    assert "tests" not in found.patch


@pytest.mark.parametrize("command", [
    "rm -rf .git",
    "git config diff.external 'echo forged'; git config core.worktree /tmp; echo '*.py -diff' > "
    ".gitattributes; git config --global core.pager false",
    "git add -A; git commit -qm mine; git update-index --assume-unchanged a.py",
    "mkdir ~/bin; printf '#!/bin/sh\\necho forged' > ~/bin/git; chmod +x ~/bin/git",
    "head -c 600000000 /dev/zero > /tmp/full",
], ids=["git_deleted", "git_configured", "hidden_from_index", "another_git", "full_disk"])
def test_nothing_done_to_git_or_the_disk_changes_what_is_handed_in(hand_in, applied, command):
    found = hand_in(f"echo more >> a.py; {command}")
    assert found.paths == ("a.py",) and found.problem == ""
    assert applied(found.patch, "cat a.py") == "one\ntwo\nmore\n"


def test_files_that_were_not_there_do_not_count(hand_in):
    assert hand_in("echo x > new.py; git add new.py").patch == ""


def test_a_link_in_place_of_a_file_or_folder_hands_in_a_link_and_nothing_behind_it(hand_in):
    found = hand_in("ln -sf /usr/bin/env a.py; rm -r pkg; ln -s /usr/lib pkg")
    assert set(found.paths) == {"a.py", "pkg/gone.py"}
    assert len(found.patch) < 1500


@pytest.mark.parametrize("command", [
    "head -c 1000000 /dev/urandom > binary", "chmod 000 a.py"])
def test_changes_that_cannot_be_read_are_the_agents_failure(hand_in, command):
    found = hand_in(command)
    assert found.patch == "" and found.problem


def test_renames_in_a_patch_from_elsewhere_count_by_both_names():
    patch = ('diff --git a/tests/test_a.py b/a.py\nsimilarity index 100%\nrename from '
             'tests/test_a.py\nrename to a.py\n'
             'diff --git "a/t\\303\\251\\"/x.py" "b/t\\303\\251\\"/x.py"\nindex 1..2 100644\n'
             '--- "a/t"\n@@ -1 +1 @@\n-rename from tests/x\n+rename to tests/y\n')
    found = submission.strip(patch)
    assert found.stripped == ("a.py",) and found.paths == ('t\u00e9"/x.py',)


def test_a_patch_of_git_with_moves_modes_and_new_files_is_stripped_and_applies(tmp_path):
    tree = tmp_path / "tree"
    for name, data in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data * 20)
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "all")
    git(tree, "mv", "a.py", "pkg/moved to.py")
    git(tree, "mv", "tests/test_a.py", "out of tests.py")
    git(tree, "mv", "binary", "tests/binary")
    git(tree, "mv", "b c.py", "d\u00e9 \"c\".py")
    (tree / "pkg/moved to.py").write_bytes(FILES["a.py"] * 20 + b"more\n")
    (tree / "tool.sh").chmod(0o755)
    (tree / "new/tests").mkdir(parents=True)
    for name in ("new/core.py", "new/tests/x.py", "new/conftest.py"):
        (tree / name).write_text("n\n")
    (tree / "link").symlink_to("pkg")
    git(tree, "init", "-q", "sub")
    git(tree / "sub", "commit", "-q", "--allow-empty", "-m", "x")
    git(tree, "-c", "advice.addEmbeddedRepo=false", "add", "-A")
    patch = git(tree, "diff", "--cached", "-M", "-C", "--binary").decode("utf-8", "surrogateescape")
    found = submission.strip(patch)
    assert set(found.stripped) == {"out of tests.py", "tests/binary", "new/tests/x.py",
                                   "new/conftest.py"}
    assert set(found.paths) == {"pkg/moved to.py", "d\u00e9 \"c\".py", "tool.sh", "new/core.py",
                                "link", "sub"}
    git(tree, "reset", "-q", "--hard")
    git(tree, "clean", "-qffd")
    (tmp_path / "patch").write_text(found.patch, encoding="utf-8", errors="surrogateescape")
    git(tree, "apply", "--whitespace=nowarn", "--index", str(tmp_path / "patch"))
    changed = git(tree, "diff", "--cached", "--name-only", "--no-renames", "-z").decode()
    assert set(changed.split("\0")[:-1]) == {*found.paths, "a.py", "b c.py"}
    assert (tree / "pkg/moved to.py").read_bytes() == FILES["a.py"] * 20 + b"more\n"


_NAME = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)),
                min_size=1, max_size=12).filter(lambda n: n not in (".", "..", ".git"))


@hypothesis.given(name=_NAME)
@hypothesis.settings(max_examples=25)
def test_any_name_is_read_back_as_git_writes_it(tmp_path_factory, name):
    where = tmp_path_factory.mktemp("names")
    file: pathlib.Path = where / "d" / f"x{name}"
    file.parent.mkdir()
    file.write_text("1\n")
    git(where, "init", "-q")
    git(where, "add", "-A", "-f")
    git(where, "commit", "-qm", "x")
    file.write_text("2\n")
    for quoting in ("true", "false"):
        patch = git(where, "-c", f"core.quotePath={quoting}", "diff")
        found = submission.strip(patch.decode("utf-8", "surrogateescape"))
        assert (found.paths + found.stripped) == (f"d/x{name}",)


@pytest.mark.parametrize("path, test", [
    ("tests/x.txt", True), ("a/test/b.py", True), ("test_x.py", True), ("x_test.py", True),
    ("conftest.py", True), ("a/sitecustomize.py", True), ("x.pth", True), ("pytest.toml", True),
    ("contest.py", False), ("a/testutils.py", False), ("latest/x.py", False), ("src/x.py", False),
])
def test_which_paths_are_tests(path, test):
    assert submission.is_test(path) == test
