"""Each modifier does what its name says, by chance that the seed decides, and nothing to tests."""

import ast
import pathlib
import random
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

cst = pytest.importorskip("libcst", reason="libcst is not installed (extra build)")

from rime_jax.envs.codebase import bugs, bugs_modifiers  # noqa: E402

FUNCTION = '''\
def middle(values, low, high):
    """The mean of what lies between."""
    total = 0
    count = 3 + low * 2 - 1
    for value in values:
        if value < low or value > high:
            count -= 1
        else:
            total += value
    with open("log") as file:
        file.write("x")
    try:
        return total / (count + 1 - high)
    except ZeroDivisionError:
        return None
'''
CLASS = '''\
class Shop(Base, Mixin):
    """Sells."""

    limit = 3

    def price(self, item):
        if item is None:
            return 0
        return self.tax(item) if item > 3 else item

    def tax(self, item):
        if item < 0 and item > -9:
            return 0
        while item > 10:
            item -= 1
        return item or 1

    def close(self):
        for _ in range(3):
            if self.limit == 4:
                return self.price(4)
        return None
'''
BY_NAME = {modifier.name.removeprefix("func_pm_"): modifier
           for modifier in bugs_modifiers.MODIFIERS}


def changed(name, source, seed=0):
    """The source after a modifier; tries seeds from `seed` on until chance changes something."""
    (node,) = cst.parse_module(source).body
    for i in range(seed, seed + 50):
        new = BY_NAME[name].modify(node, random.Random(i))
        if new is not None:
            return cst.Module([new]).code
    raise AssertionError(f"{name} changes nothing")


def count(source, *kinds):
    return sum(isinstance(node, kinds) for node in ast.walk(ast.parse(source)))


def test_there_are_the_thirteen_modifiers_of_swe_smith_with_its_likelihoods():
    assert len(BY_NAME) == 13
    likelihoods = {name: modifier.likelihood for name, modifier in BY_NAME.items()}
    assert {name for name, p in likelihoods.items() if p == 0.4} == {
        "op_break_chains", "op_change", "op_change_const", "op_swap"}
    assert [name for name, p in likelihoods.items() if p == 0.15] == ["class_rm_funcs"]
    assert sum(p == 0.25 for p in likelihoods.values()) == 8


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_modifier_applies_to_one_kind_and_leaves_valid_python(name):
    function, klass = ast.parse(FUNCTION).body[0], ast.parse(CLASS).body[0]
    of_class = name.startswith("class_")
    assert BY_NAME[name].applies(klass) == of_class
    assert BY_NAME[name].applies(function) != of_class
    source = CLASS if of_class else FUNCTION
    for seed in range(20):
        new = changed(name, source, 50 * seed)
        assert ast.dump(ast.parse(new)) != ast.dump(ast.parse(source))


@pytest.mark.parametrize(("name", "kinds"), [
    ("remove_assign", (ast.Assign, ast.AugAssign)), ("remove_cond", (ast.If,)),
    ("remove_loop", (ast.For, ast.While)), ("remove_wrapper", (ast.With, ast.Try)),
])
def test_removals_remove_what_they_name(name, kinds):
    assert count(changed(name, FUNCTION), *kinds) < count(FUNCTION, *kinds)


def test_a_body_that_loses_its_only_statement_passes():
    new = changed("remove_assign", "def f(a):\n    if a:\n        b = 1\n")
    assert ast.unparse(ast.parse(new)) == "def f(a):\n    if a:\n        pass"


def test_a_base_is_lost_and_the_rest_of_the_class_is_not():
    before, after = (ast.parse(s).body[0] for s in (CLASS, changed("class_rm_base", CLASS)))
    assert len(after.bases) == len(before.bases) - 1
    assert ast.dump(ast.Module(after.body, [])) == ast.dump(ast.Module(before.body, []))


def test_lost_methods_are_no_longer_called():
    for seed in range(20):
        new = changed("class_rm_funcs", CLASS, 50 * seed)
        left = set(re.findall(r"def (\w+)", new))
        assert left < {"price", "tax", "close"}
        assert set(re.findall(r"self\.(\w+)\(", new)) <= left


def test_methods_change_places_and_stay_the_same():
    before, after = (ast.parse(s).body[0].body for s in (CLASS, changed("class_shuffle_funcs",
                                                                        CLASS)))
    assert sorted(map(ast.dump, before)) == sorted(map(ast.dump, after))
    assert list(map(ast.dump, before)) != list(map(ast.dump, after))


def test_an_inverted_condition_swaps_its_branches():
    source = "def f(a):\n    if a:\n        x = 1\n    else:\n        y = 2\n"
    assert changed("ctrl_invert_if", source) == (
        "def f(a):\n    if a:\n        y = 2\n    else:\n        x = 1\n")


def test_shuffled_lines_are_the_same_lines_behind_the_documentation():
    before, after = (ast.parse(s).body[0].body for s in (FUNCTION, changed("ctrl_shuffle",
                                                                           FUNCTION)))
    assert ast.dump(before[0]) == ast.dump(after[0])
    assert sorted(map(ast.dump, before)) == sorted(map(ast.dump, after))


@pytest.mark.parametrize(("name", "source", "possible"), [
    ("op_swap", "a - b", {"b - a"}),
    ("op_swap", "a and b", {"b and a"}),
    ("op_change", "a + b", {"a - b"}),
    ("op_change", "a // b", {"a * b", "a / b", "a % b"}),
    ("op_change", "a << b", {"a >> b"}),
    ("op_change", "a ** b", {"a * b"}),
    ("op_change_const", "a + 1", {"a + 0", "a + 2"}),
    ("op_change_const", "0x10 * b", {"15 * b", "17 * b"}),
    ("op_change_const", "2 ** 0", {"1 ** (-1)", "1 ** 1", "3 ** (-1)", "3 ** 1"}),
    ("op_break_chains", "a + b + c", {"a + c"}),
    ("op_break_chains", "a + (b * c)", {"a + c"}),
])
def test_operations_change_as_named(name, source, possible):
    found = set()
    for seed in range(40):
        new = changed(name, f"def f(a, b, c):\n    return {source}\n", 50 * seed)
        found.add(new.removeprefix("def f(a, b, c):\n    return ").strip())
    assert found == possible


def test_small_definitions_are_left_alone():
    for source in ("def f(a):\n    return a + 1\n", "class A(B):\n    def f(self): pass\n"):
        node = ast.parse(source).body[0]
        assert not any(modifier.applies(node) for modifier in bugs_modifiers.MODIFIERS)


def write_library(root: pathlib.Path) -> None:
    for path, text in {
        "shop/__init__.py": "", "shop/core.py": f"import os\n\n\n{FUNCTION}\n\n{CLASS}",
        "shop/sub/more.py": "if True:\n" + "".join(f"    {line}" if line.strip() else line
                                                    for line in FUNCTION.splitlines(True)),
        "shop/broken.py": "def f(:\n", "shop/crlf.py": FUNCTION.replace("\n", "\r\n"),
        "tests/test_shop.py": FUNCTION, "shop/test_inside.py": FUNCTION, "setup.py": FUNCTION,
        "docs/example.py": FUNCTION, "conftest.py": FUNCTION, ".tox/x.py": FUNCTION,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode())


def test_tests_packaging_and_documents_are_never_touched(tmp_path):
    write_library(tmp_path)
    assert {bug.path for bug in bugs.find(tmp_path, 0)} == {"shop/core.py", "shop/sub/more.py"}


def test_bugs_are_a_function_of_the_seed_and_come_in_turns_by_strategy(tmp_path):
    write_library(tmp_path)
    found = list(bugs.find(tmp_path, 3))
    assert found == list(bugs.find(tmp_path, 3))
    assert {bug.patch for bug in found} != {bug.patch for bug in bugs.find(tmp_path, 4)}
    strategies = [bug.strategy for bug in found]
    first_round = strategies[: len(set(strategies))]
    assert len(set(first_round)) > 0.6 * len(first_round)
    assert len({bug.patch for bug in found}) == len(found)


def test_patches_apply_name_their_function_and_change_one_definition(tmp_path):
    write_library(tmp_path)
    for bug in bugs.find(tmp_path, 1):
        before = (tmp_path / bug.path).read_text()
        subprocess.run(["git", "apply"], input=bug.patch, text=True, cwd=tmp_path, check=True)
        after = (tmp_path / bug.path).read_text()
        ast.parse(after)
        assert before.splitlines()[:2] == after.splitlines()[:2]
        subprocess.run(["git", "apply", "-R"], input=bug.patch, text=True, cwd=tmp_path, check=True)
        assert (tmp_path / bug.path).read_text() == before
        assert f" {bug.function.split('.')[-1]}\n" in bug.patch


LINES = st.lists(st.text("ab \t", max_size=3), max_size=12)


@given(LINES, LINES)
def test_a_patch_of_any_two_texts_makes_one_of_the_other(before, after):
    old, new = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    if old == new or not old or not new:
        return
    hunks = bugs.patch("a.py", old, new).split("\n@@ ")[1:]
    # An applier of its own: copies what stands between the hunks, then follows their signs.
    lines, result, at = old.splitlines(), [], 0
    for hunk in hunks:
        head, *body = hunk.splitlines()
        start, _, length = head.split()[0][1:].partition(",")
        begin = int(start) - (length != "0")
        result += lines[at:begin]
        at = begin
        for line in body:
            if line[0] in " -":
                assert lines[at] == line[1:]
                at += 1
            if line[0] in " +":
                result.append(line[1:])
    assert result + lines[at:] == new.splitlines()
