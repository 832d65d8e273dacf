"""Repositories of the forms that occur: made, installed by pip, and their tests run in the sandbox.

Installing needs build tools from the package index, so most of this is marked `network`.
"""

import json
import os
import pathlib
import subprocess

import pytest

from rime_jax.envs.codebase import grading, installs, sources, trees, validation
from tests.envs.codebase import repositories

NETWORK = pytest.mark.skipif(os.environ.get("RIME_NETWORK") != "1",
                             reason="installs from the package index; set RIME_NETWORK=1")
PROJECT = '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
SCM = PROJECT.replace(">=77", '>=77", "setuptools-scm>=8')
MODULE = "def double(n):\n    return n * 2\n"
TEST = "import shop\n\n\ndef test_double():\n    assert shop.double(2) == 4\n"
UNITTEST = ("import unittest\n\nfrom shop import double\n\n\nclass TestShop(unittest.TestCase):\n"
            "    def test_double(self):\n        for n in range(3):\n"
            "            with self.subTest(n=n):\n"
            "                self.assertEqual(double(n), n + n)\n")

# Form → (files, ids of its tests).
FORMS = {
    "src layout, pyproject alone": ({
        "pyproject.toml": PROJECT + '[project]\nname = "shop"\nversion = "1"\n',
        "src/shop/__init__.py": MODULE, "tests/test_shop.py": TEST}, ["tests/test_shop.py"]),
    "setup.cfg, tests in the package": ({
        "pyproject.toml": PROJECT,
        "setup.cfg": "[metadata]\nname = shop\nversion = 1\n[options]\npackages = find:\n",
        "shop/__init__.py": MODULE, "shop/tests/__init__.py": "",
        "shop/tests/test_shop.py": TEST}, ["shop/tests/test_shop.py"]),
    "setup.py, unittest, odd folder": ({
        "setup.py": "from setuptools import setup\nsetup(name='shop', version='1', "
                    "package_dir={'': 'python/lib'}, py_modules=['shop'])\n",
        "python/lib/shop.py": MODULE, "test_shop.py": UNITTEST}, ["test_shop.py"]),
    "version from git, requirement, extra": ({
        "pyproject.toml": SCM + '[project]\nname = "my-shop"\ndynamic = ["version"]\n'
                          'dependencies = ["iniconfig"]\n'
                          '[project.optional-dependencies]\ntests = ["toolz"]\n'
                          '[tool.setuptools_scm]\nversion_file = "src/shop/_version.py"\n',
        "src/shop/__init__.py": "import iniconfig\nfrom shop._version import version\n" + MODULE,
        "tests/test_shop.py": "from importlib import metadata\nimport toolz\n" + TEST
                              + "    assert metadata.version('my-shop') == shop.version\n"},
        ["tests/test_shop.py"]),
    "nothing that pip could install": ({
        "pyproject.toml": "[tool.ruff]\nline-length = 100\n", "shop.py": MODULE,
        "tests/test_shop.py": TEST}, ["tests/test_shop.py"]),
}


def commit(where: pathlib.Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(text)
    git = ["git", "-C", str(where), "-c", "user.name=t", "-c", "user.email=t@t"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *arguments], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE,
                          text=True).stdout.strip()


@pytest.mark.network
@NETWORK
@pytest.mark.parametrize("form", FORMS)
def test_repositories_of_every_form_are_tested_in_their_workspace(box, tmp_path, form):
    files, named = FORMS[form]
    where = tmp_path / "repository"
    # As SWE-smith calls its mirrors.
    name = "swesmith/owner__shop.12345678"
    library = sources.Library(
        name, f"{where}@{commit(where, files)}",
        requirements=(".[tests]",) if "extra" in form else ())
    store = trees.TreeStore(tmp_path / "cache", [], {name: library})
    base = store.base(name)
    assert store.missing() == []
    clean = grading.run_tests(box, base, (), 60)
    assert clean.complete and clean.passed and all(clean.passed.values()), clean.output
    assert {test.split("::")[0] for test in clean.passed} == set(named)
    # The bug in the workspace is noticed, so its modules are the ones that are imported.
    path = next(path for path, text in files.items() if MODULE in text)
    patch = (f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
             + hunk(files[path]))  # Without the end of its last line, as some rows have it.
    bugged = grading.run_tests(box, store.base(name, patch.removesuffix("\n")), (), 60)
    assert bugged.complete and not any(bugged.passed.values()), bugged.output


def hunk(text: str) -> str:
    lines = text.splitlines()
    at = lines.index("    return n * 2")
    return (f"@@ -{at},2 +{at},2 @@\n {lines[at - 1]}\n-{lines[at]}\n+    return n * 2 + 1\n")


def test_another_library_of_a_name_is_refused_and_the_old_one_stays(tmp_path):
    old = sources.Library("shop", "pypi:shop==1")
    place = tmp_path / "environments" / "shop"
    place.mkdir(parents=True)
    (place / "made_of.json").write_text(json.dumps(installs._made_of(old)))
    assert installs.environment(old, tmp_path, tmp_path) == place
    for changed in (sources.Library("shop", "pypi:shop==2"),
                    sources.Library("shop", "pypi:shop==1", ("six",))):
        with pytest.raises(sources.SourceError, match="another name, or delete"):
            installs.environment(changed, tmp_path, tmp_path)
    assert place.is_dir()


def test_what_an_installation_generates_is_kept_for_the_tree(tmp_path):
    site, root = tmp_path / "site", tmp_path / "files" / "src"
    for folder in (site / "shop", root / "shop"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    (site / "shop" / "_version.py").write_text("version = '0'")
    (site / "other.py").write_text("")
    record = [site / "shop" / "__init__.py", site / "shop" / "_version.py"]
    assert installs._root(record, site, tmp_path / "files") == "src"
    installs._take_out(record, site, root, tmp_path / "kept" / "src")
    assert [p.name for p in (tmp_path / "kept").rglob("*.py")] == ["_version.py"]
    assert sorted(p.name for p in site.iterdir()) == ["other.py"]


def test_without_a_network_the_remedy_is_named(tmp_path):
    gone = sources.Library("gone", f"{tmp_path}/nowhere@0")
    store = trees.TreeStore(tmp_path / "cache", [], {"gone": gone})
    with pytest.raises(sources.SourceError, match=r"nowhere.*(?s:.)*codebase\.prepare"):
        store.base("gone")
    assert store.missing() == ["gone"]


def test_test_ids_with_spaces_brackets_and_other_scripts_are_graded(box, tmp_path):
    where = tmp_path / "repository"
    ids = ["a b", "x[y]", "größe", "a::b", "日本", "it's", 'say "so"', "back\\slash", "a/b.py"]
    test = ("import pytest\nimport shop\n\n\n"
            f"@pytest.mark.parametrize('n', [1] * {len(ids)}, ids={ids!r})\n"
            "def test_double(n):\n    assert shop.double(n) == 2\n\n\n"
            "def test_other():\n    pass\n")
    library = sources.Library("shop", f"{where}@" + commit(
        where, {"shop.py": MODULE, "pytest.ini": "[pytest]\ndisable_test_id_escaping_and_forfeit_"
                "all_rights_to_community_support = true\n", "tests/test_shop.py": test}))
    repositories.environment(tmp_path / "cache" / "environments" / "shop")
    patch = "diff --git a/shop.py b/shop.py\n--- a/shop.py\n+++ b/shop.py\n" + hunk(MODULE)
    named = tuple(f"tests/test_shop.py::test_double[{name}]" for name in ids)
    task = repositories.CodeTask("shop.x__1", "shop", "shop", patch, "", named,
                                 ("tests/test_shop.py::test_other",), "It doubles wrongly.")
    store = trees.TreeStore(tmp_path / "cache", [task], {"shop": library})
    assert validation.validate(task, store, box, tmp_path / "cache").reason == ""
