"""Reads the text of a compiled program (HLO): computations, array sizes, trip counts of loops."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64, "bf16": 16, "f16": 16, "f32": 32, "f64": 64,
    "c64": 64, "c128": 128, "f8e4m3fn": 8, "f8e5m2": 8, "token": 0,
}

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_NAME = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](\{[^{}]*\})?")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a shape.

    Attributes:
      in_hbm: False where the compiler keeps it in the core's own memory.
    """

    dtype: str
    dims: tuple[int, ...]
    in_hbm: bool

    @property
    def entries(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return -(-self.entries * _BITS.get(self.dtype, 0) // 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      arrays: of its result; several for a tuple.
      operands: names of instructions of the same computation.
      attributes: the text behind the operands.
    """

    name: str
    op: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    argument: str
    attributes: str

    @property
    def bytes(self) -> int:
        return sum(a.bytes for a in self.arrays)

    def called(self, *keys: str) -> list[str]:
        """Names of the computations given under these attributes."""
        found = []
        for key in keys:
            match = re.search(key + r"=(\{[^}]*\}|%?[\w.\-]+)", self.attributes)
            if match:
                found += re.findall(r"[\w.\-]+", match.group(1))
        return found


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions by name, in order."""

    name: str
    instructions: dict[str, Instruction]
    root: str

    @functools.cached_property
    def parameters(self) -> dict[int, str]:
        return {int(i.argument): i.name for i in self.instructions.values()
                if i.op == "parameter"}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        found: dict[str, list[Instruction]] = {}
        for i in self.instructions.values():
            for operand in dict.fromkeys(i.operands):
                found.setdefault(operand, []).append(i)
        return found


@dataclasses.dataclass(frozen=True)
class Module:
    """A program. `devices` is the number of partitions it runs on."""

    computations: dict[str, Computation]
    entry: str
    devices: int

    def arrays(self) -> Iterator[tuple[Instruction, Array]]:
        """Every array that any instruction makes, inside of fusions too."""
        for computation in self.computations.values():
            for instruction in computation.instructions.values():
                for array in instruction.arrays:
                    yield instruction, array


def parse(text: str) -> Module:
    """The program of `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    entry, name, root = "", "", ""
    instructions: dict[str, Instruction] = {}
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header and " = " not in line.split("{")[0]:
            name, instructions, root = header.group(2), {}, ""
            entry = name if header.group(1) else entry
        elif line.startswith("}"):
            computations[name] = Computation(name, instructions, root)
        elif match := _NAME.match(line):
            instruction = _instruction(match.group(2), line[match.end():])
            instructions[instruction.name] = instruction
            root = instruction.name if match.group(1) else root
    devices = re.search(r"num_partitions=(\d+)", text[:text.find("\n")])
    return Module(computations, entry, int(devices.group(1)) if devices else 1)


def trip_count(module: Module, parent: Computation, loop: Instruction) -> int | None:
    """Iterations of a `while`; None where they are known only when it runs.

    The compiler's own note if there is one; otherwise (TPU) the loop's counter is followed from its
    first value by its step to its limit.
    """
    noted = re.search(r'known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)', loop.attributes)
    if noted:
        return int(noted.group(1))
    condition = module.computations[loop.called("condition")[0]]
    body = module.computations[loop.called("body")[0]]
    test = condition.instructions[condition.root]
    if test.op != "compare" or "direction=LT" not in test.attributes:
        return None
    counter = condition.instructions[test.operands[0]]
    limit = _constant(condition, test.operands[1])
    if counter.op != "get-tuple-element" or limit is None:
        return None
    place = int(re.search(r"index=(\d+)", counter.attributes).group(1))
    step = _increment(body, body.instructions[body.root].operands[place], place)
    state = parent.instructions[loop.operands[0]]
    first = _constant(parent, state.operands[place]) if state.op == "tuple" else None
    if not step:
        return None
    return max(0, -(-(limit - (first or 0)) // step))


def _increment(body: Computation, name: str, place: int) -> int | None:
    """What is added to element `place` of the loop's state until `name`."""
    instruction = body.instructions[name]
    if instruction.op == "get-tuple-element":
        return 0 if f"index={place}" in instruction.attributes.split(", metadata")[0] else None
    if instruction.op in ("copy", "bitcast", "convert"):
        return _increment(body, instruction.operands[0], place)
    if instruction.op != "add":
        return None
    for a, b in (instruction.operands, instruction.operands[::-1]):
        constant = _constant(body, b)
        if constant is not None:
            before = _increment(body, a, place)
            return None if before is None else before + constant
    return None


def _constant(computation: Computation, name: str) -> int | None:
    instruction = computation.instructions[name]
    if instruction.op == "constant" and re.fullmatch(r"-?\d+", instruction.argument):
        return int(instruction.argument)
    if instruction.op in ("copy", "bitcast", "convert"):
        return _constant(computation, instruction.operands[0])
    return None


def _instruction(name: str, rest: str) -> Instruction:
    """From `shape op(operands), attributes`."""
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opened = rest.index("(")
    closed = _closing(rest, opened)
    argument = rest[opened + 1:closed]
    return Instruction(name, rest[:opened], _arrays(shape), tuple(_OPERAND.findall(argument)),
                       argument, rest[closed + 1:])


def _arrays(shape: str) -> tuple[Array, ...]:
    return tuple(
        Array(dtype, tuple(int(re.sub(r"\D", "", n)) for n in dims.split(",") if n),
              not re.search(r"S\([1-9]\)", layout or ""))
        for dtype, dims, layout in _ARRAY.findall(shape) if dtype in _BITS)


def _closing(text: str, at: int) -> int:
    """Index of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    raise ValueError(f"HLO with an open bracket: {text[:200]}")
