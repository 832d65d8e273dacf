"""Which tensors of Hugging Face's files make up a policy's parameters, and in which layout."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rime_jax.policy import base, families

# Transform of an HF_NAMES table → the axis of the file's tensor behind each of our axes. An axis
# that is left out has size 1.
_AXES = {"none": (0, 1), "transpose": (1, 0), "depthwise": (2, 0)}


@dataclasses.dataclass(frozen=True)
class Form:
    """How a file's tensor becomes a parameter.

    Attributes:
      axes: the file's axis behind each of our axes; axes that are left out have size 1.
      heads: if the file has several kinds of features one after another on our last axis, each for
        all heads, and we have all kinds of the first head, then of the second, …: the number of
        heads.
      kinds: features of each kind.
    """

    axes: tuple[int, ...]
    heads: int = 1
    kinds: tuple[int, ...] = ()

    @property
    def same(self) -> bool:
        """Whether file and parameter have the same elements in the same order."""
        return self.axes == tuple(range(len(self.axes))) and not self.kinds


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of a file and where it belongs.

    Attributes:
      path: of our parameter, as in HF_NAMES.
      row: index along the parameter's first axis (layers); None: it is the whole parameter.
      name: in the file.
      shape: in the file.
      form: how it becomes ours (without the stacked axis).
    """

    path: str
    row: int | None
    name: str
    shape: tuple[int, ...]
    form: Form

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))


def tensors(policy: base.Policy) -> dict[str, list[Tensor]]:
    """Our parameter path → its tensors in files, in the order of its first axis."""
    names = families.of(policy).hf_names
    found = {}
    for path, leaf in flat(policy.shapes()).items():
        template, transform = names[path]
        stacked = "{}" in template
        shape = leaf.shape[1:] if stacked else leaf.shape
        axes = _AXES[transform][:len(shape)]
        sizes = dict(zip(axes, shape, strict=True))
        in_file = tuple(sizes.get(i, 1) for i in range(max(axes) + 1))
        form = Form(axes, *policy.hf_heads(path))
        layers = policy.hf_layers(path) if stacked else (None,)
        found[path] = [Tensor(path, row if stacked else None, template.format(layer), in_file, form)
                       for row, layer in enumerate(layers)]
    return found


def ours(x: jax.Array, form: Form) -> jax.Array:
    """A file's tensor as the parameter has it."""
    squeezed = tuple(i for i in range(x.ndim) if i not in form.axes)
    x = x.transpose(form.axes + squeezed).reshape([x.shape[i] for i in form.axes])
    if not form.kinds:
        return x
    parts = jnp.split(x, np.cumsum(form.kinds[:-1]), -1)
    by_head = [part.reshape(*x.shape[:-1], form.heads, -1) for part in parts]
    return jnp.concatenate(by_head, -1).reshape(x.shape)


def theirs(x: jax.Array, form: Form, rank: int) -> jax.Array:
    """The inverse of `ours`, for a tensor with `rank` axes in its file."""
    if form.kinds:
        of_head = [kind // form.heads for kind in form.kinds]
        parts = jnp.split(x.reshape(*x.shape[:-1], form.heads, -1), np.cumsum(of_head[:-1]), -1)
        x = jnp.concatenate([part.reshape(*x.shape[:-1], -1) for part in parts], -1)
    squeezed = tuple(i for i in range(rank) if i not in form.axes)
    return x.reshape(x.shape + (1,) * len(squeezed)).transpose(np.argsort(form.axes + squeezed))


def flat(tree: Any) -> dict[str, Any]:
    """A nested dict as path → leaf, paths joined by `/`."""
    return {"/".join(k.key for k in path): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
