"""A statement shows what tests see, and nothing of the library or the patch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax.envs.codebase import published, statements

OUTPUT = """\
.F..F                                                                    [100%]
=================================== FAILURES ===================================
_______________________________ test_zip_values ________________________________
tests/test_colls.py:220: in test_zip_values
    assert list(zip_values({1: 10})) == [(10, 20)]
           ^^^^^^^^^^^^^^^^^^^^^^^^^
shop/colls.py:244: in zip_values
    for key in keys:
               ^^^^
E   UnboundLocalError: cannot access local variable 'keys'
----------------------------- Captured stdout call -----------------------------
secret print
__________________________ TestA.test_it[a::b ___ c] ___________________________
/testbed/tests/test_a.py:3: in test_it
    check()
tests/helpers.py:9: in check
    assert f() == 1
E   assert 2 == 1
E    +  where 2 = f()
_____________________ ERROR at setup of TestB.test_fixture _____________________
tests/conftest.py:4: in thing
    return shop.open()
E   OSError: no
=========================== short test summary info ============================
FAILED tests/test_colls.py::test_zip_values - UnboundLocalError: cannot acces...
"""
PATCH = """\
diff --git a/shop/colls.py b/shop/colls.py
--- a/shop/colls.py
+++ b/shop/colls.py
@@ -1,3 +1,3 @@ def zip_values
 def zip_values(*dicts):
-    keys = set.intersection(*map(set, dicts))
+    keys = set.union(*map(set, dicts))
"""


def shown(*tests):
    return {f.test: list(f.lines) for f in statements.failures(OUTPUT, tests)}


def test_lines_of_the_library_and_captured_output_do_not_show():
    assert shown("tests/test_colls.py::test_zip_values") == {
        "tests/test_colls.py::test_zip_values": [
            "tests/test_colls.py:220: in test_zip_values",
            "    assert list(zip_values({1: 10})) == [(10, 20)]",
            "E   UnboundLocalError: cannot access local variable 'keys'"]}


def test_classes_parameters_and_fixtures_are_found_by_their_ids():
    test = "tests/test_a.py::TestA::test_it[a::b ___ c]"
    assert shown(test)[test][-2:] == ["E   assert 2 == 1", "E    +  where 2 = f()"]
    assert shown("tests/conftest.py::TestB::test_fixture")


def test_a_test_of_the_same_name_in_another_file_is_not_mistaken():
    assert shown("tests/other.py::test_zip_values", "tests/test_colls.py::test_missing") == {}


def test_colours_are_taken_off():
    output = OUTPUT.replace("___ ", "___ \x1b[1m").replace("E  ", "\x1b[31mE\x1b[0m  ")
    test = "tests/test_colls.py::test_zip_values"
    assert statements.failures(output, [test]) == statements.failures(OUTPUT, [test])


def test_an_inherited_test_is_found_though_its_lines_stand_elsewhere():
    output = "____ TestA.test_x ____\ntests/__init__.py:3: in run\n    assert f()\nE   no\n"
    assert len(statements.failures(output, ["tests/test_a.py::TestA::test_x"])) == 1


def test_at_most_three_failures_show_and_all_are_named():
    tests = [f"tests/test_a.py::test_{i}" for i in range(5)]
    output = "".join(f"_____ test_{i} _____\ntests/test_a.py:1: in test_{i}\nE   no\n"
                     for i in range(5))
    found = statements.failures(output, tests)
    assert [f.test for f in found] == tests[:3]
    text = statements.write("shop 1.0", tests, found, PATCH, "0")
    assert "shop 1.0" in text and all(f"- `{test}`" in text for test in tests)
    assert text.count("```\n") == 6


def test_a_changed_line_that_a_test_repeats_is_left_out_or_spoils_the_statement():
    line = "keys = set.union(*map(set, dicts))"
    failure = statements.Failure("t.py::test_x", ("t.py:1: in test_x", f"    {line}", "E   no"))
    text = statements.write("shop", [failure.test], [failure], PATCH, "0")
    assert line not in text and "E   no" in text
    assert statements.write("shop", [f"t.py::test_x[{line}]"], [], PATCH, "0") is None


def test_places_and_addresses_of_one_run_do_not_show():
    lines = ("/testbed/tests/test_a.py:3: in test_a", "E   no <A at 0x7f8213a263e0>")
    text = statements.write("shop", ["t"], [statements.Failure("t", lines)], PATCH, "0")
    assert "\ntests/test_a.py:3: in test_a\nE   no <A at 0x...>\n" in text


def test_the_wording_depends_on_the_seed_alone():
    texts = [statements.write("shop", ["t.py::test_x"], [], PATCH, str(i)) for i in range(40)]
    assert len(set(texts)) > 6
    assert texts[0] == statements.write("shop", ["t.py::test_x"], [], PATCH, "0")
    assert all(len(text) >= 100 for text in texts)


@given(st.lists(st.sampled_from(OUTPUT.splitlines() + ["=== x ===", "___ a ___", "    ", "E  "])))
def test_any_output_is_read_without_an_error(lines):
    tests = ["tests/test_colls.py::test_zip_values", "tests/test_a.py::a", "a", "", "a::b::c["]
    for failure in statements.failures("\n".join(lines), tests):
        assert failure.test in tests and failure.lines


@pytest.mark.skipif(not (published.DIRECTORY / "tasks.jsonl.xz").exists(),
                    reason="no task set is shipped")
def test_shipped_statements_leak_nothing_of_their_patches():
    for row in published.rows():
        text = row["problem_statement"]
        assert len(text) >= 100
        assert not [line for line in statements.changed_lines(row["patch"]) if line in text]
        assert "diff --git" not in text and "@@" not in text
        blocks = "\n".join(text.split("```")[1::2])
        frames = [line.split(":")[0] for line in blocks.splitlines() if ": in " in line]
        assert row["path"] not in frames, row["instance_id"]
