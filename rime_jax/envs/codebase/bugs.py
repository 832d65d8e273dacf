"""Bugs for a library: its functions and classes, broken one at a time. Needs libcst."""

import ast
import dataclasses
import difflib
import functools
import hashlib
import pathlib
import random
from collections.abc import Iterator

import libcst as cst

from rime_jax.envs.codebase import bugs_modifiers, submission

# Folders and files of an archive that are no part of the library.
_ASIDE = frozenset({"benchmark", "benchmarks", "ci", "demo", "doc", "docs", "example", "examples",
                    "fixtures", "scripts", "tools", "vendor", "_vendor", "build"})
_PACKAGING = frozenset({"setup.py", "noxfile.py", "tasks.py", "conf.py"})


@dataclasses.dataclass(frozen=True)
class Bug:
    """Attributes:
      strategy: the modifier's name.
      path: of the changed file, relative to the repository.
      function: the changed function or class, qualified: `Class.method`.
      patch: introduces the bug; for `git apply`.
    """

    strategy: str
    path: str
    function: str
    patch: str

    @property
    def digest(self) -> str:
        """Eight characters that tell bugs of one library apart."""
        return hashlib.sha256(self.patch.encode()).hexdigest()[:8]


def find(root: pathlib.Path, seed: int) -> Iterator[Bug]:
    """The bugs that the modifiers make of a repository, each as it is asked for.

    They come in turns by strategy, in an order that the seed decides, so that a beginning is a
    varied choice. No patch comes twice.

    Args:
      root: the repository.
      seed: of all choices; each bug depends on it and its own function alone.
    """
    by_strategy: dict[str, list[_Place]] = {}
    for path in library_files(root):
        for place in _places(path, (root / path).read_text(encoding="utf-8")):
            by_strategy.setdefault(place.modifier.name, []).append(place)
    rng = random.Random(f"{seed} order")
    queues = [by_strategy[name] for name in sorted(by_strategy)]
    for queue in queues:
        rng.shuffle(queue)
    turns = max(map(len, queues), default=0)
    seen = set()
    for place in (queue[i] for i in range(turns) for queue in queues if i < len(queue)):
        source = (root / place.path).read_text(encoding="utf-8")
        bug = _make(place, source, seed)
        if bug is not None and bug.patch not in seen:
            seen.add(bug.patch)
            yield bug


def library_files(root: pathlib.Path) -> list[str]:
    """The library's own Python files: neither tests nor packaging, documents, examples."""
    found = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if (submission.is_test(path.as_posix()) or _ASIDE & set(path.parts[:-1])
                or path.name in _PACKAGING or any(part.startswith(".") for part in path.parts)):
            continue
        try:
            text = file.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        # A patch of other line ends, or without a last one, needs more than the plain format.
        if text.endswith("\n") and "\r" not in text and "\f" not in text:
            found.append(path.as_posix())
    return found


def of_file(path: str, source: str, seed: int) -> list[Bug]:
    """All bugs in one file; none if it is no valid Python."""
    made = [_make(place, source, seed) for place in _places(path, source)]
    return [bug for bug in made if bug is not None]


def patch(path: str, before: str, after: str, heading: str = "") -> str:
    """A git patch of one file, both of whose texts end in a newline.

    Args:
      path: relative to the repository.
      before, after: the texts.
      heading: stands in every hunk's header, as the enclosing function does in git's own.
    """
    lines = list(difflib.unified_diff(before.splitlines(True), after.splitlines(True),
                                      f"a/{path}", f"b/{path}"))
    if heading:
        lines = [f"{line.rstrip()} {heading}\n" if line.startswith("@@ ") else line
                 for line in lines]
    return f"diff --git a/{path} b/{path}\n{''.join(lines)}"


@dataclasses.dataclass(frozen=True)
class _Place:
    """A modifier and a definition that it applies to.

    Lines `begin` to `end` are the outermost statement around it, in which it is the index-th
    definition: to take that apart instead of the file is many times faster.
    """

    path: str
    function: str
    begin: int
    end: int
    index: int
    modifier: bugs_modifiers.Modifier


def _places(path: str, source: str) -> list[_Place]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    found = []
    for statement in tree.body:
        decorators = getattr(statement, "decorator_list", [])
        begin = min([statement.lineno, *(d.lineno for d in decorators)]) - 1
        inside = _definitions(ast.Module([statement], []))
        found += [_Place(path, name, begin, statement.end_lineno, i, modifier)
                  for i, (name, node) in enumerate(inside)
                  for modifier in bugs_modifiers.MODIFIERS if modifier.applies(node)]
    return found


def _definitions(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, bugs_modifiers.Definition]]:
    """Functions and classes at any depth in the order of the text, with qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, bugs_modifiers.Definition):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        else:
            yield from _definitions(child, prefix)


def _make(place: _Place, source: str, seed: int) -> Bug | None:
    lines = source.splitlines(True)
    part = "".join(lines[place.begin:place.end])
    module, nodes = _parsed(part)
    node = nodes[place.index]
    rng = random.Random(f"{seed} {place.path} {place.function} {place.modifier.name}")
    changed = place.modifier.modify(node, rng)
    if changed is None:
        return None
    code = module.deep_replace(node, changed).code
    if not _differs(code, part):
        return None
    after = "".join([*lines[:place.begin], code, *lines[place.end:]])
    kind = "class" if isinstance(node, cst.ClassDef) else "def"
    heading = f"{kind} {node.name.value}"
    return Bug(place.modifier.name, place.path, place.function,
               patch(place.path, source, after, heading))


def _differs(code: str, before: str) -> bool:
    """Whether it is valid Python and more than its layout has changed."""
    try:
        compile(code, "changed", "exec")
        return ast.dump(ast.parse(code)) != ast.dump(ast.parse(before))
    except (SyntaxError, ValueError):
        return False


@functools.lru_cache(maxsize=64)
def _parsed(part: str) -> tuple[cst.Module, list[cst.FunctionDef | cst.ClassDef]]:
    """The syntax tree with layout, and its definitions in the order of `_definitions`."""
    module = cst.parse_module(part)
    collector = _Definitions()
    module.visit(collector)
    return module, collector.found


class _Definitions(cst.CSTVisitor):
    def __init__(self):
        super().__init__()
        self.found: list[cst.FunctionDef | cst.ClassDef] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.found.append(node)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.found.append(node)
