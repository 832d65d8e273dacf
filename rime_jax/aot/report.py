"""Compiles the programs and says, per device: memory, traffic, time by the roofline, fit."""

import dataclasses
import re
import time
from collections.abc import Sequence
from typing import Any

import jax

from rime_jax.aot import hardware, hlo, programs, traffic

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Row:
    """One program on one device. Sizes in bytes, times in seconds.

    Attributes:
      arguments, outputs, temporary: of the program; outputs without those that reuse an argument.
      resident: what others hold meanwhile.
      peak: all of these together.
      spare: HBM - peak; negative: does not fit.
      collectives: kind → {count, bytes, wire_bytes}.
      compute_s, hbm_s, ici_s: each at its peak rate.
      run_s: the largest of them: one run, if everything overlapped perfectly.
      serial_s: their sum: one run, if nothing overlapped.
      mfu: model FLOPs / (peak FLOP/s x run_s).
      error: why the compiler refused; all measured fields are then 0.
    """

    name: str
    compile_s: float
    runs: float
    arguments: int = 0
    outputs: int = 0
    temporary: int = 0
    resident: int = 0
    peak: int = 0
    spare: int = 0
    model_flops: float = 0.0
    executed_flops: float = 0.0
    hbm_bytes: float = 0.0
    collectives: dict[str, Any] = dataclasses.field(default_factory=dict)
    compute_s: float = 0.0
    hbm_s: float = 0.0
    ici_s: float = 0.0
    run_s: float = 0.0
    serial_s: float = 0.0
    mfu: float = 0.0
    error: str = ""

    @property
    def fits(self) -> bool:
        return not self.error and self.spare >= 0


def compile_all(
    found: Sequence[programs.Program], slice_: hardware.Slice, tell: Any = None
) -> list[Row]:
    """A row for each program; `tell` hears the name of each before it is compiled."""
    rows = []
    for program in found:
        if tell:
            tell(f"compiling {program.name} …")
        rows.append(_row(program, slice_))
    return rows


def _row(program: programs.Program, slice_: hardware.Slice) -> Row:
    began = time.monotonic()
    try:
        compiled = program.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        return Row(program.name, time.monotonic() - began, program.runs,
                   resident=program.resident, error=_refusal(str(error)))
    compile_s = time.monotonic() - began
    memory = compiled.memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    peak = (memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes
            + program.resident)
    # Two devices of a chip share its memory and its rates.
    part = 1 / slice_.chip.devices
    moved = _moved(hlo.parse(compiled.as_text()), program)
    collectives, hbm_bytes = moved
    wire = sum(c["wire_bytes"] for c in collectives.values())
    times = (program.executed_flops / (slice_.chip.peak_flops * part),
             hbm_bytes / (slice_.chip.hbm_bytes * part), wire / (slice_.chip.ici_bytes * part))
    run_s = max(times)
    return Row(
        program.name, compile_s, program.runs, memory.argument_size_in_bytes, outputs,
        memory.temp_size_in_bytes, program.resident, peak,
        int(slice_.chip.hbm_gib * GIB * part) - peak, program.model_flops, program.executed_flops,
        hbm_bytes, collectives, *times, run_s, sum(times),
        program.model_flops / (slice_.chip.peak_flops * part * run_s) if run_s else 0.0)


def _moved(module: hlo.Module, program: programs.Program) -> tuple[dict[str, Any], float]:
    """Collectives and HBM bytes; of one iteration of the dynamic loop if that is asked for."""
    whole = traffic.measure(module, program.loops)
    before = traffic.measure(module, 0) if program.per_loop else traffic.Traffic()
    collectives = {}
    for kind, c in sorted(whole.collectives.items()):
        less = dataclasses.asdict(before.collectives.get(kind, traffic.Collective()))
        collectives[kind] = {k: v - less[k] for k, v in dataclasses.asdict(c).items()}
    return collectives, whole.hbm_bytes - before.hbm_bytes


def _refusal(message: str) -> str:
    """The line of a compiler's error that says how much memory is missing, or its first line."""
    found = re.search(r"[^\n]*Exceeded \w+ capacity by[^\n]*", message)
    return (found.group(0) if found else message.splitlines()[0]).strip()


def as_json(rows: Sequence[Row], slice_: hardware.Slice) -> dict[str, Any]:
    """All figures, for other programs."""
    return {
        "topology": slice_.name,
        "devices": len(slice_.devices),
        "hosts": slice_.hosts,
        "chip": dataclasses.asdict(slice_.chip),
        "programs": [dataclasses.asdict(r) | {"fits": r.fits} for r in rows],
        "fits": all(r.fits for r in rows),
        "iteration_s": sum(r.runs * r.run_s for r in rows),
    }


def as_text(rows: Sequence[Row], slice_: hardware.Slice) -> str:
    """The tables for a reader."""
    chip = slice_.chip
    unit = "device (half a chip)" if chip.devices == 2 else "chip"
    lines = [
        f"{slice_.name}: {len(slice_.devices)} devices on {slice_.hosts} host(s); "
        f"{chip.hbm_gib / chip.devices:g} GiB of HBM, {chip.peak_flops / chip.devices / 1e12:g} "
        f"TFLOP/s per {unit}",
        "",
        f"Memory per {unit}, GiB ('others': parameters, optimiser and cache of the other programs)",
        table(("program", "arguments", "outputs", "temporary", "others", "peak", "verdict",
                "compiled in"),
               [(r.name, *[f"{x / GIB:.2f}" for x in (r.arguments, r.outputs, r.temporary,
                                                       r.resident, r.peak)],
                 verdict(r), f"{r.compile_s:.0f} s") for r in rows]),
        "",
        f"One run per {unit} at peak rates ('run': all overlaps, 'serial': nothing does)",
        table(("program", "TFLOP", "executed", "HBM GiB", "ICI GiB", "compute s", "HBM s",
                "ICI s", "run s", "MFU", "serial s", "x runs", "= s"),
               [(r.name, f"{r.model_flops / 1e12:.4g}", f"{r.executed_flops / 1e12:.4g}",
                 f"{r.hbm_bytes / GIB:.4g}",
                 f"{sum(c['wire_bytes'] for c in r.collectives.values()) / GIB:.4g}",
                 *[f"{x:.3g}" for x in (r.compute_s, r.hbm_s, r.ici_s, r.run_s)],
                 f"{100 * r.mfu:.0f} %", f"{r.serial_s:.3g}", f"{r.runs:g}",
                 f"{r.runs * r.run_s:.3g}")
                for r in rows if not r.error]),
        "",
        "Collectives of one run per device",
        table(("program", "kind", "count", "array GiB", "sent GiB"),
               [(r.name, kind, f"{c['count']:g}", f"{c['bytes'] / GIB:.3g}",
                 f"{c['wire_bytes'] / GIB:.3g}")
                for r in rows for kind, c in r.collectives.items()]),
        "",
    ]
    if all(r.fits for r in rows):
        total = sum(r.runs * r.run_s for r in rows)
        lines.append(f"Everything fits. One iteration takes at least {total:.0f} s.")
    else:
        lines.append("This does not fit: " + "; ".join(
            f"{r.name} ({r.error or verdict(r)})" for r in rows if not r.fits))
    return "\n".join(lines)


def verdict(row: Row) -> str:
    """Whether it fits, and by how much."""
    if row.error:
        return "refused"
    size = f"{abs(row.spare) / GIB:.1f} GiB"
    return f"fits, {size} free" if row.fits else f"does not fit by {size}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, numbers to the right; the first one is text."""
    everything = [head, *rows]
    widths = [max(len(line[i]) for line in everything) for i in range(len(head))]
    return "\n".join(
        "  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w)
                         for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in everything)
