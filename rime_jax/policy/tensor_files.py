"""Reading slices of safetensors files, and writing them one tensor at a time.

The format (https://github.com/huggingface/safetensors): eight bytes with the header's length, the
header in JSON (name → dtype, shape, first and last byte), the tensors' bytes without gaps.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from rime_jax import errors

INDEX = "model.safetensors.index.json"

_DTYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class ModelError(errors.UserError):
    """A model directory that cannot be used; the message names the file and the remedy."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    file: pathlib.Path
    name: str
    shape: tuple[int, ...]

    def read(self, index: tuple[slice, ...]) -> np.ndarray:
        """A copy of the slice; nothing else is read.

        The file is opened for each call: pages of an open one would count as this process's memory.
        """
        with safetensors.safe_open(self.file, framework="np") as f:
            return f.get_slice(self.name)[index]


def inventory(directory: pathlib.Path) -> dict[str, Stored]:
    """Every tensor of a model directory, by name: of the files of its index, of
    model.safetensors, or else of all *.safetensors files.

    Raises:
      ModelError: no or damaged files, a tensor in two of them, or a dtype other than bfloat16,
        float16 and float32.
    """
    found = {}
    for file in _files(directory):
        try:
            with safetensors.safe_open(file, framework="np") as f:
                for name in f.keys():
                    tensor = f.get_slice(name)
                    _check_dtype(file, name, tensor.get_dtype())
                    if name in found:
                        raise ModelError(f"tensor {name} is in {found[name].file} and in {file}; "
                                         "remove the file that is not of this model")
                    found[name] = Stored(file, name, tuple(tensor.get_shape()))
        except (OSError, safetensors.SafetensorError) as error:
            raise ModelError(f"{file} cannot be read ({error}); copy it again") from error
    return found


def write(
    file: pathlib.Path, specs: Mapping[str, tuple[Any, tuple[int, ...]]], arrays: Iterable[Any]
) -> None:
    """Writes a file from arrays that are made one after another.

    Args:
      file: is on the disk when this returns.
      specs: name → (dtype, shape), in the order of `arrays`.
      arrays: numpy arrays; each is dropped before the next is asked for.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in specs.items():
        start, end = end, end + n_bytes(dtype, shape)
        header[name] = {"dtype": _CODES[np.dtype(dtype)], "shape": list(shape),
                        "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            # bfloat16 has no buffer protocol of its own.
            f.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            del array
        f.flush()
        os.fsync(f.fileno())
        if f.tell() != 8 + len(text) + end:
            raise AssertionError(f"{file}: the arrays have not the sizes of their specs")


def write_index(directory: pathlib.Path, files: Mapping[str, str], total_size: int) -> None:
    """The index of several files: tensor name → file name; sizes in bytes."""
    content = {"metadata": {"total_size": total_size}, "weight_map": dict(files)}
    (directory / INDEX).write_text(json.dumps(content, indent=2) + "\n")


def n_bytes(dtype: Any, shape: tuple[int, ...]) -> int:
    """Size of a tensor in a file."""
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _files(directory: pathlib.Path) -> list[pathlib.Path]:
    index, single = directory / INDEX, directory / "model.safetensors"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            missing = [name for name in names if not (directory / name).is_file()]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} has no weight_map from names of tensors to names of files "
                             f"({error}); copy it again") from error
        if missing:
            raise ModelError(f"{index} names {missing}, which {directory} lacks; copy them")
        return [directory / name for name in names]
    files = [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{directory} has no *.safetensors file; convert the model with "
                              "transformers' save_pretrained")
    return files


def _check_dtype(file: pathlib.Path, name: str, code: str) -> None:
    if code not in _DTYPES:
        raise ModelError(f"{file}: tensor {name} is {code}; only {sorted(_DTYPES)} are read, "
                              "convert the model")
