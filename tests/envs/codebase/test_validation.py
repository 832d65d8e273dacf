"""Verdicts on made-up libraries, by running their tests in the sandbox."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax.envs.codebase import bugs, grading, sandbox, sources, trees, validation
from tests.envs.codebase import repositories

LIBRARY = """\
import itertools

COUNTER = itertools.count()


def size(values):
    n = 0
    for _ in values:
        n = n + 1
    return n


def double(value):
    return value * 2
"""
TESTS = """\
import os
import random

import pytest

import shop


@pytest.mark.parametrize("n", range(4))
def test_size(n):
    assert shop.size(range(n)) == n


def test_double():
    assert shop.double(4) == 8


def test_other():
    pass


def test_sometimes():
    assert random.SystemRandom().random() < 0.5


def test_never():
    raise AssertionError


@pytest.mark.skip
def test_skipped():
    pass


@pytest.mark.parametrize("name", [pytest.param(1, id="x" * 250), object()])
def test_unnamable(name):
    pass


@pytest.mark.parametrize("thing", [os.urandom(4).hex()])
def test_other_name_each_time(thing):
    pass
"""
STABLE = (*(f"tests/test_shop.py::test_size[{n}]" for n in range(4)),
          "tests/test_shop.py::test_double", "tests/test_shop.py::test_other")


def patch(before, after):
    return bugs.patch("shop.py", LIBRARY, LIBRARY.replace(before, after))


BUG = patch("value * 2", "value ** 2")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    files = cache / "sources" / "shop"
    (files / "tests").mkdir(parents=True)
    (files / "shop.py").write_text(LIBRARY)
    (files / "tests" / "test_shop.py").write_text(TESTS)
    (cache / "environments").mkdir()
    repositories.environment(cache / "environments" / "shop")
    return trees.TreeStore(cache, [], {"shop": sources.Library("shop", "made-up@0")})


@pytest.fixture(scope="module")
def suite(box, store):
    found = validation.measure(box, store.base("shop"))
    # Whether the coin fell on the same side each time is not ours to say.
    return dataclasses.replace(
        found, tests=tuple(t for t in found.tests if not t.endswith("sometimes")))


@pytest.fixture
def task(suite):
    return repositories.CodeTask(
        "shop.x__1", "shop", "shop", BUG, "", ("tests/test_shop.py::test_double",),
        tuple(t for t in STABLE if "double" not in t), "It doubles wrongly.")


def test_a_suite_holds_the_tests_that_always_pass_and_can_be_named(suite):
    assert suite.tests == (*STABLE, "tests/test_shop.py::test_unnamable[name1]")


def test_unreliable_tests_are_no_part_of_a_suite(box, store, monkeypatch):
    def runs(*_, **__):
        outcome.append(not outcome or not outcome[-1])
        return grading.TestRun(
            {**dict.fromkeys("abcde", True), "flaky": outcome[-1]}, True, "", 1.0)

    outcome = []
    monkeypatch.setattr(grading, "run_tests", runs)
    assert validation.measure(box, store.base("shop")).tests == tuple("abcde")


@pytest.mark.parametrize(("change", "reason"), [
    (BUG, ""),
    (patch("return n\n", "return n + 1\n"), "fewer than 3"),
    (patch("n = 0\n", "n = int(0)\n"), "no test fails"),
    (patch("for _ in values", "while True"), "not run to their end"),
    (patch("def double", "def doubled"), ""),
    (patch("COUNTER = itertools.count()", "raise ImportError"), "more than|not run|not even"),
    (patch("value * 2", "__import__('os')._exit(0)"), "not run to their end"),
    ("diff --git a/no.py b/no.py\n--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-a\n+b\n", "not run"),
])
def test_a_bug_makes_a_task_if_a_few_tests_notice(box, store, suite, change, reason):
    quick = dataclasses.replace(suite, tests=STABLE, seconds=-0.4)
    verdict = validation.try_bug(box, store.base("shop"), quick, change)
    if reason:
        assert pytest.importorskip("re").search(reason, verdict.reason)
        assert verdict.failed == ()
    else:
        assert verdict.failed == ("tests/test_shop.py::test_double",)
        assert "test_double" in verdict.output and verdict.reason == ""


def test_a_good_task_is_valid_and_the_verdict_is_kept(box, store, task, tmp_path, monkeypatch):
    assert validation.validate(task, store, box, tmp_path) == validation.Verdict("")
    monkeypatch.setattr(grading, "run_tests", None)
    assert validation.validate(task, store, box, tmp_path) == validation.Verdict("")
    (file,) = (tmp_path / "verdicts").iterdir()
    assert json.loads(file.read_text())["instance_id"] == task.instance_id


@pytest.mark.parametrize(("field", "value", "reason"), [
    ("fail_to_pass", (), "no test is named"),
    ("fail_to_pass", ("tests/test_shop.py::test_other",), "pass without a repair"),
    ("pass_to_pass", ("tests/test_shop.py::test_never",), "fail without a repair"),
    ("fail_to_pass", ("tests/test_shop.py::test_double", "tests/test_shop.py::test_never"),
     "1 tests fail with the repair"),
    ("gold_patch", BUG.replace("value ** 2", "value * 3").replace("value * 2", "value ** 2"),
     "1 tests fail with the repair"),
    ("fail_to_pass", ("tests/test_shop.py::test_gone",), "do not run with the repair"),
])
def test_a_task_whose_tests_do_not_tell_is_refused(box, store, task, tmp_path, field, value,
                                                   reason):
    wrong = dataclasses.replace(task, instance_id=f"{field}{value}", **{field: value})
    assert reason in validation.validate(wrong, store, box, tmp_path).reason


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", "\0\0"])
def test_a_damaged_verdict_is_as_if_absent(store, task, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(validation, "_reason", lambda *_: "found anew")
    assert validation.validate(task, store, None, tmp_path).reason == "found anew"
    (file,) = (tmp_path / "verdicts").iterdir()
    whole = file.read_text()
    file.write_text(damage)
    assert validation.validate(task, store, None, tmp_path).reason == "found anew"
    assert file.read_text() == whole


def test_the_gold_patch_undoes_the_bug_but_no_test(box, store, task):
    tests = store.base("shop").tree / "tests" / "test_shop.py"
    both = BUG + bugs.patch("tests/test_shop.py", tests.read_text(),
                            tests.read_text() + "# more\n")
    task = dataclasses.replace(task, instance_id="both", setup_patch=both)
    gold = validation.gold_patch(task, store.prepare(task), box)
    assert "+    return value * 2" in gold and "test_shop" not in gold


def test_an_unusable_library_says_why(box, store):
    base = store.base("shop")
    with pytest.raises(validation.ValidationError, match="to their end"):
        validation.measure(box, dataclasses.replace(base, environment={
            **base.environment, "PYTEST_ADDOPTS": "--no-such-option"}))
    assert isinstance(base, sandbox.Base)


@given(st.integers(0, 900), st.integers(1, 20), st.randoms())
def test_shipping_only_the_useful_tests_changes_no_tasks_passing_tests(n, broken, rng):
    suite = tuple(f"t.py::test_{i}" for i in range(n))
    failed = tuple(rng.sample(suite, min(broken, n)))
    passing = validation.passing(suite, failed)
    assert passing == validation.passing(validation.useful(suite), failed)
    assert not set(passing) & set(failed)
    assert len(passing) == min(500, n - len(failed))
    assert list(passing) == sorted(passing, key=suite.index)
