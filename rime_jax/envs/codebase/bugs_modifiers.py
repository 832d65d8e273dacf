"""The thirteen procedural modifiers of SWE-smith: each turns a function or class into a broken one.

What each one does, where it applies and how likely it acts on a place are those of SWE-smith
(arXiv 2504.21798), so that measured pass rates per strategy carry over. Needs libcst (extra
`build`).
"""

import ast
import dataclasses
import random
from collections.abc import Callable

import libcst as cst
import libcst.matchers as m

# Runs of a modifier over a function before it counts as having nothing to change.
_TRIES = 5

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_CLASS = (ast.ClassDef,)


@dataclasses.dataclass(frozen=True)
class Modifier:
    """Attributes:
      name: the strategy, as instance ids have it.
      kinds: of definitions that it changes.
      within: whether a node is what it looks for; the definition must contain one.
      transformer: makes the visitor that does it.
      likelihood: of a change at each place.
      complexity: smallest and largest of the definition (`complexity`).
    """

    name: str
    kinds: tuple[type, ...]
    within: Callable[[ast.AST], bool]
    transformer: Callable[[random.Random, float], cst.CSTTransformer]
    likelihood: float = 0.25
    complexity: tuple[float, float] = (3, float("inf"))

    def applies(self, node: Definition) -> bool:
        """Whether the definition is of the right kind, size and content."""
        low, high = self.complexity
        return (isinstance(node, self.kinds) and any(map(self.within, ast.walk(node)))
                and low <= complexity(node) <= high)

    def modify(
        self, node: cst.FunctionDef | cst.ClassDef, rng: random.Random
    ) -> cst.FunctionDef | cst.ClassDef | None:
        """A changed definition; None: chance or the definition left nothing to change."""
        for _ in range(_TRIES):
            changed = node.visit(self.transformer(rng, self.likelihood))
            if not changed.deep_equals(node):
                return changed
        return None


def complexity(node: Definition) -> int:
    """1 + branches, loops, exception handlers, comparisons, `and`s and `or`s."""
    total = 1
    for inner in ast.walk(node):
        if isinstance(inner, (ast.If, ast.For, ast.While, ast.ExceptHandler)):
            total += 1
        elif isinstance(inner, ast.BoolOp):
            total += len(inner.values) - 1
        elif isinstance(inner, ast.Compare):
            total += len(inner.ops)
    return total


class _Transformer(cst.CSTTransformer):
    def __init__(self, rng: random.Random, likelihood: float):
        super().__init__()
        self.rng, self.likelihood = rng, likelihood

    def flip(self) -> bool:
        return self.rng.random() < self.likelihood

    def removed(self, node: cst.CSTNode) -> cst.CSTNode | cst.RemovalSentinel:
        return cst.RemoveFromParent() if self.flip() else node


class _RemoveBase(_Transformer):
    def leave_ClassDef(self, original_node, updated_node):
        bases = list(updated_node.bases)
        if not bases or not self.flip():
            return updated_node
        del bases[self.rng.randrange(len(bases))]
        if bases:
            bases[-1] = bases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(bases=bases)


class _RemoveMethods(_Transformer):
    def leave_ClassDef(self, original_node, updated_node):
        kept, gone = [], set()
        for statement in updated_node.body.body:
            if isinstance(statement, cst.FunctionDef) and self.flip():
                gone.add(statement.name.value)
            else:
                kept.append(statement)
        if not gone:
            return updated_node
        body = updated_node.body.with_changes(body=kept)
        return updated_node.with_changes(body=body.visit(_ForgetCalls(gone)))


class _ForgetCalls(cst.CSTTransformer):
    """Calls of methods that are gone become None, or the loss would name itself."""

    def __init__(self, names: set[str]):
        super().__init__()
        self._call = m.Call(func=m.Attribute(
            value=m.Name("self"), attr=m.Name(m.MatchIfTrue(lambda name: name in names))))

    def leave_Call(self, original_node, updated_node):
        return cst.Name("None") if m.matches(updated_node, self._call) else updated_node


class _ShuffleMethods(_Transformer):
    def leave_ClassDef(self, original_node, updated_node):
        body = updated_node.body.body
        methods = [s for s in body if isinstance(s, cst.FunctionDef)]
        others = [s for s in body if not isinstance(s, cst.FunctionDef)]
        self.rng.shuffle(methods)
        return updated_node.with_changes(body=updated_node.body.with_changes(body=others + methods))


class _InvertIf(_Transformer):
    def leave_If(self, original_node, updated_node):
        other = updated_node.orelse
        if not isinstance(other, cst.Else) or not self.flip():
            return updated_node
        return updated_node.with_changes(
            body=other.body, orelse=other.with_changes(body=updated_node.body))


class _ShuffleLines(_Transformer):
    def leave_FunctionDef(self, original_node, updated_node):
        if not isinstance(updated_node.body, cst.IndentedBlock) or not self.flip():
            return updated_node
        lines = list(updated_node.body.body)
        # A documentation string that moved would show the place.
        head = lines[: int(updated_node.get_docstring() is not None)]
        tail = lines[len(head):]
        self.rng.shuffle(tail)
        return updated_node.with_changes(
            body=updated_node.body.with_changes(body=head + tail))


class _RemoveAssignments(_Transformer):
    def leave_Assign(self, original_node, updated_node):
        return self.removed(updated_node)

    def leave_AugAssign(self, original_node, updated_node):
        return self.removed(updated_node)


class _RemoveConditionals(_Transformer):
    def leave_If(self, original_node, updated_node):
        return self.removed(updated_node)


class _RemoveLoops(_Transformer):
    def leave_For(self, original_node, updated_node):
        return self.removed(updated_node)

    def leave_While(self, original_node, updated_node):
        return self.removed(updated_node)


class _RemoveWrappers(_Transformer):
    def leave_With(self, original_node, updated_node):
        return self.removed(updated_node)

    def leave_Try(self, original_node, updated_node):
        return self.removed(updated_node)


class _BreakChains(_Transformer):
    def leave_BinaryOperation(self, original_node, updated_node):
        if not self.flip():
            return updated_node
        left, right = updated_node.left, updated_node.right
        if isinstance(left, cst.BinaryOperation):
            return updated_node.with_changes(left=left.left)
        if isinstance(right, cst.BinaryOperation):
            return updated_node.with_changes(right=right.right)
        return updated_node


class _ChangeConstants(_Transformer):
    def leave_BinaryOperation(self, original_node, updated_node):
        if not self.flip():
            return updated_node
        for side in ("left", "right"):
            number = getattr(updated_node, side)
            if isinstance(number, cst.Integer):
                value = number.evaluated_value + self.rng.choice((-1, 1))
                new = (cst.Integer(str(value)) if value >= 0 else
                       cst.parse_expression(f"({value})"))
                updated_node = updated_node.with_changes(**{side: new})
        return updated_node


_ALIKE = (
    (cst.Add, cst.Subtract),
    (cst.Multiply, cst.Divide, cst.FloorDivide, cst.Modulo),
    (cst.BitAnd, cst.BitOr, cst.BitXor),
    (cst.LeftShift, cst.RightShift),
    (cst.Power, cst.Multiply),
)


class _ChangeOperators(_Transformer):
    def leave_BinaryOperation(self, original_node, updated_node):
        now = type(updated_node.operator)
        alike = next((group for group in _ALIKE if now in group), ())
        if not alike or not self.flip():
            return updated_node
        new = self.rng.choice([operator for operator in alike if operator is not now])
        return updated_node.with_changes(operator=new())


class _SwapOperands(_Transformer):
    def swapped(self, node):
        if not self.flip():
            return node
        return node.with_changes(left=node.right, right=node.left)

    def leave_BinaryOperation(self, original_node, updated_node):
        return self.swapped(updated_node)

    def leave_BooleanOperation(self, original_node, updated_node):
        return self.swapped(updated_node)


def _is(*kinds: type) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, kinds)


def _is_derived(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and bool(node.bases)


def _has_else(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and bool(node.orelse)


_LARGE = (10, float("inf"))
_OPERATION = _is(ast.BinOp)
_LOOP = _is(ast.For, ast.While)

MODIFIERS = (
    Modifier("func_pm_class_rm_base", _CLASS, _is_derived, _RemoveBase, complexity=_LARGE),
    Modifier("func_pm_class_rm_funcs", _CLASS, _is(*_FUNCTION), _RemoveMethods, 0.15, _LARGE),
    Modifier("func_pm_class_shuffle_funcs", _CLASS, _is(*_FUNCTION), _ShuffleMethods,
             complexity=_LARGE),
    Modifier("func_pm_ctrl_invert_if", _FUNCTION, _has_else, _InvertIf,
             complexity=(5, float("inf"))),
    Modifier("func_pm_ctrl_shuffle", _FUNCTION, _LOOP, _ShuffleLines, complexity=(3, 10)),
    Modifier("func_pm_remove_assign", _FUNCTION, _is(ast.Assign, ast.AugAssign),
             _RemoveAssignments),
    Modifier("func_pm_remove_cond", _FUNCTION, _is(ast.If), _RemoveConditionals),
    Modifier("func_pm_remove_loop", _FUNCTION, _LOOP, _RemoveLoops),
    Modifier("func_pm_remove_wrapper", _FUNCTION, _is(ast.With, ast.Try), _RemoveWrappers),
    Modifier("func_pm_op_break_chains", _FUNCTION, _OPERATION, _BreakChains, 0.4),
    Modifier("func_pm_op_change_const", _FUNCTION, _OPERATION, _ChangeConstants, 0.4),
    Modifier("func_pm_op_change", _FUNCTION, _OPERATION, _ChangeOperators, 0.4),
    Modifier("func_pm_op_swap", _FUNCTION, _OPERATION, _SwapOperands, 0.4),
)
