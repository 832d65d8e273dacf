"""Bytes that a compiled program moves, per device: collectives by kind, and HBM.

XLA's own cost analysis counts the body of a loop once; here it counts as often as it runs.
"""

import dataclasses
import itertools
import math
import re

from rime_jax.aot import hlo

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")

# Instructions that move nothing themselves.
_FREE = {
    "parameter", "tuple", "get-tuple-element", "bitcast", "constant", "while", "call",
    "conditional", "after-all", "partition-id", "replica-id", "copy-done", "add-dependency",
    "opt-barrier", "async-start", "async-update", "async-done", "iota",
}

# Those that read of their first operand as much as they make.
_SLICES = {"slice", "dynamic-slice", "gather"}


@dataclasses.dataclass
class Collective:
    """All collectives of one kind.

    Attributes:
      count: how often one runs.
      bytes: of the whole arrays: of what is gathered, reduced, exchanged or sent.
      wire_bytes: that leave a device, by the best algorithm on a ring of the group.
    """

    count: float = 0
    bytes: float = 0
    wire_bytes: float = 0


@dataclasses.dataclass
class Traffic:
    """What one run of a program moves.

    Attributes:
      collectives: kind → its sums; kinds that do not occur are left out.
      hbm_bytes: read from and written to HBM, fused instructions counted once.
    """

    collectives: dict[str, Collective] = dataclasses.field(default_factory=dict)
    hbm_bytes: float = 0

    @property
    def wire_bytes(self) -> float:
        return sum(c.wire_bytes for c in self.collectives.values())


def measure(module: hlo.Module, dynamic_trips: int = 1) -> Traffic:
    """Sums over the whole program.

    Args:
      module: from `hlo.parse`.
      dynamic_trips: iterations of a loop whose number only the data tell (the micro-batches of an
        update, the tokens of a decoding).
    """
    total = Traffic()
    _visit(module, module.entry, 1, dynamic_trips, total)
    return total


def _visit(module: hlo.Module, name: str, times: float, dynamic: int, total: Traffic) -> None:
    computation = module.computations[name]
    seen: set[tuple[str, str]] = set()
    for instruction in computation.instructions.values():
        if instruction.op == "while":
            trips = hlo.trip_count(module, computation, instruction)
            inner = times * (dynamic if trips is None else trips)
            _visit(module, instruction.called("body")[0], inner, dynamic, total)
        elif instruction.op in ("call", "call-start", "conditional", "async-start"):
            for called in instruction.called(
                    "to_apply", "branch_computations", "true_computation", "false_computation",
                    "calls"):
                _visit(module, called, times, dynamic, total)
        else:
            _collectives(module, computation, instruction, times, seen, total)
            total.hbm_bytes += times * _moved(module, computation, instruction)


def _collectives(
    module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction, times: float,
    seen: set[tuple[str, str]], total: Traffic,
) -> None:
    """Adds a collective, or those inside a fusion (TPUs fuse them with what they overlap)."""
    if instruction.op == "fusion":
        inner = module.computations[instruction.called("calls")[0]]
        for own in inner.instructions.values():
            _collectives(module, inner, own, times, seen, total)
        return
    kind = instruction.op.removesuffix("-start")
    if kind not in KINDS:
        return
    # The pieces of an overlapped collective, spread over several fusions, share its channel. Those
    # that were written by hand all share one.
    channel = re.search(r"channel_id=(\d+)", instruction.attributes)
    if channel and channel.group(1) != "1":
        if (kind, channel.group(1)) in seen:
            return
        seen.add((kind, channel.group(1)))
    if "all-reduce-scatter" in computation.name:
        kind = "reduce-scatter"
    members = _members(module, instruction)
    given = sum(computation.instructions[o].bytes for o in instruction.operands)
    size = given * members if kind == "all-gather" else given
    share = {"all-reduce": 2 * (members - 1) / members, "collective-permute": 1.0}.get(
        kind, (members - 1) / members)
    of_kind = total.collectives.setdefault(kind, Collective())
    of_kind.count += times
    of_kind.bytes += times * size
    of_kind.wire_bytes += times * size * share


def _members(module: hlo.Module, instruction: hlo.Instruction) -> int:
    """Devices of one group of a collective."""
    text = instruction.attributes
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", text)
    if listed:
        return len(listed.group(1).split(","))
    generated = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", text)
    if generated:
        return int(generated.group(2))
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", text)
    if mesh:
        sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", mesh.group(1))}
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh.group(2))
        return math.prod(int(part) if part else sizes[name] for name, part in axes)
    return module.devices


def _moved(
    module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction
) -> int:
    """HBM bytes of one instruction that is not inside a fusion."""
    op = instruction.op
    if op in _FREE or op.endswith("-done") or op.removesuffix("-start") in KINDS:
        return 0
    if op == "fusion":
        fused = module.computations[instruction.called("calls")[0]]
        read = sum(
            _read_by(module, fused, fused.parameters[place])
            for place, operand in enumerate(instruction.operands)
            if _in_hbm(computation, operand))
        return read + _written_by(fused, instruction)
    if op in _SLICES:
        return _hbm(instruction) + (_hbm(instruction)
                                    if _in_hbm(computation, instruction.operands[0]) else 0)
    if op == "slice-start":
        # Its result holds source and target; of the source it reads what the target has.
        source, target = instruction.arrays[:2]
        return target.bytes * (source.in_hbm + target.in_hbm)
    if op == "dynamic-update-slice":
        return 2 * computation.instructions[instruction.operands[1]].bytes
    if op == "copy-start":
        # Its result holds source and target; either may be in the core's memory.
        return sum(a.bytes for a in instruction.arrays[:2] if a.in_hbm)
    read = sum(_hbm(computation.instructions[o]) for o in dict.fromkeys(instruction.operands))
    return read + _hbm(instruction)


def _read_by(module: hlo.Module, fused: hlo.Computation, parameter: str) -> int:
    """Bytes of a parameter that a fusion reads: slices alone where it only slices."""
    read = 0
    whole = sum(a.bytes for a in fused.instructions[parameter].arrays)
    for user in fused.users.get(parameter, []):
        if user.op in _SLICES and user.operands[0] == parameter:
            read += user.bytes
        elif user.op == "dynamic-update-slice" and user.operands[0] == parameter:
            continue
        elif user.op == "bitcast":
            read += _read_by(module, fused, user.name)
        elif user.op == "fusion":
            inner = module.computations[user.called("calls")[0]]
            for place, operand in enumerate(user.operands):
                if operand == parameter and _source(inner) == inner.parameters[place]:
                    read += _read_by(module, fused, user.name)
                elif operand == parameter:
                    read += _read_by(module, inner, inner.parameters[place])
        else:
            return whole
    return min(read, whole)


def _source(fused: hlo.Computation) -> str:
    """What the result of a fusion is, in another form perhaps."""
    root = fused.instructions[fused.root]
    while root.op == "bitcast":
        root = fused.instructions[root.operands[0]]
    return root.name


def _written_by(fused: hlo.Computation, instruction: hlo.Instruction) -> int:
    """Bytes that a fusion writes: the update alone where it updates an array in place."""
    root = fused.instructions[_source(fused)]
    roots = [fused.instructions[o] for o in root.operands] if root.op == "tuple" else [root]
    written = 0
    # A single root may be a tuple itself (several sorted or reduced arrays at once).
    for array, made in zip(
        instruction.arrays, itertools.chain(roots, itertools.repeat(root)), strict=False
    ):
        if not array.in_hbm:
            continue
        updates = made.op == "dynamic-update-slice"
        written += fused.instructions[made.operands[1]].bytes if updates else array.bytes
    return written


def _hbm(instruction: hlo.Instruction) -> int:
    return sum(a.bytes for a in instruction.arrays if a.in_hbm)


def _in_hbm(computation: hlo.Computation, name: str) -> bool:
    return any(a.in_hbm for a in computation.instructions[name].arrays)
