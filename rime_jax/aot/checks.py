"""What a compiled update must not do, read from its HLO."""

import math
from typing import Any

import jax

from rime_jax.aot import hlo


def whole_logits(module: hlo.Module, tokens: int, vocab: int) -> list[str]:
    """Names of instructions that make an array of at least tokens × vocabulary entries.

    Args:
      module: the program of one device.
      tokens: of a micro-batch on one device; more than the features of the model.
      vocab: entries of the vocabulary on one device.
    """
    return [i.name for i, a in module.arrays()
            if vocab in a.dims and a.entries // vocab >= tokens]


def whole_stacks(module: hlo.Module, shapes: Any) -> list[str]:
    """Names of all-gathers that make a parameter of all layers at once.

    Layers are to be gathered one after another, each when it is used.

    Args:
      module: the program of one device.
      shapes: a tree like the parameters; stacked ones are those below its first level.
    """
    stacked = {_compact(x.shape) for x in jax.tree.leaves(
        {name: tree for name, tree in shapes.items() if isinstance(tree, dict)})
        if math.prod(x.shape) > 1 and len(_compact(x.shape)) > 2}
    return [i.name for i, a in module.arrays()
            if i.op.startswith("all-gather") and _compact(a.dims) in stacked]


def _compact(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes without ones, in ascending order: layouts permute and pad axes."""
    return tuple(sorted(d for d in dims if d > 1))
