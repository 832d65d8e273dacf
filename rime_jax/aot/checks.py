"""What a compiled update must not do, read from its HLO."""

import math
from collections import Counter
from typing import Any

import jax

from rime_jax.aot import hlo


def whole_logits(module: hlo.Module, tokens: int, vocab: int) -> list[str]:
    """Names of instructions that make an array of at least tokens × vocabulary entries.

    Args:
      module: the program of one device.
      tokens: of a micro-batch on one device.
      vocab: entries of the vocabulary on one device.
    """
    return [i.name for i, a in module.arrays() if a.entries >= tokens * vocab]


def whole_stacks(module: hlo.Module, shapes: Any) -> list[str]:
    """Names of all-gathers that make a parameter of all layers at once.

    Layers are to be gathered one after another, each when it is used.

    Args:
      module: the program of one device.
      shapes: a tree like the parameters; stacked ones are those below its first level.
    """
    stacked = {x.shape for x in jax.tree.leaves(
        {name: tree for name, tree in shapes.items() if isinstance(tree, dict)}) if x.ndim > 2}
    # Layouts permute axes, and scans divide the one of the layers.
    return [i.name for i, a in module.arrays() if i.op.startswith("all-gather")
            and any(Counter(shape[1:]) <= Counter(a.dims) and a.entries >= math.prod(shape)
                    for shape in stacked)]
