"""Model directories in Hugging Face layout: config.json, *.safetensors, tokenizer files.

Weights go straight into their sharded arrays and back, one tensor of a file at a time: beside the
parameters themselves a process holds about one tensor.
"""

import errno
import functools
import json
import logging
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from rime_jax.policy import base, families, hub, layout, tensor_files
from rime_jax.policy.tensor_files import ModelError

_log = logging.getLogger(__name__)

ASSETS = pathlib.Path(__file__).parent.parent / "assets"
# Published models of which only the config.json is shipped: enough for rime_jax.aot.
SIZES = ASSETS / "sizes"

# Names in a message; more are counted.
_SHOWN = 4
# Rows of an embedding that are in memory together while two are compared.
_COMPARED_ROWS = 4096


def resolve(path: str) -> pathlib.Path:
    """The directory of a model: a path, or the name of a model shipped with the package.

    Raises:
      ModelError: there is no such directory.
    """
    for candidate in (pathlib.Path(os.path.expanduser(path)), ASSETS / path, SIZES / path):
        if (candidate / "config.json").is_file():
            return candidate
    shipped = sorted(p.name for p in ASSETS.glob("*") if (p / "config.json").is_file())
    raise ModelError(
        f"model.path = {path!r}: no directory with a config.json, and not one of the shipped "
        f"models {shipped}; nothing is downloaded, give the path of a model directory"
    )


def make_policy(
    directory: pathlib.Path, dtype: str, remat: str, attention: str = "auto"
) -> base.Policy:
    """The pure functions of the model in a directory.

    Args:
      directory: holds a config.json.
      dtype: of activations.
      remat: one of `layers.REMATS`.
      attention: one of `attention.KERNELS`.

    Raises:
      ModelError: an architecture or a variant that is not implemented, or a missing field.
    """
    family, config = families.read(directory / "config.json")
    return family.make(config, jnp.dtype(dtype), remat, attention)


def check(directory: pathlib.Path, policy: base.Policy) -> None:
    """Compares names and shapes of the stored weights with the policy's.

    Weights are not read, but for the copy of its embeddings that a tied model may carry.

    Raises:
      ModelError: lists the tensors that are missing, unexpected or of another shape; or the copy
        is none.
    """
    _match(directory, policy, layout.tensors(policy))


def load(
    directory: pathlib.Path, policy: base.Policy, shardings: Any = None, dtype: Any = jnp.float32
) -> base.Params:
    """Parameters from safetensors files, each device reading only its slices.

    Args:
      directory: of the model; one file, several with or without an index.
      policy: from `make_policy`.
      shardings: a tree like the parameters of jax.sharding.Sharding; None: this process's first
        device.
      dtype: of the parameters, whatever the files hold (bfloat16, float16, float32).

    Raises:
      ModelError: as `check`.
    """
    one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    wanted = layout.tensors(policy)
    stored = _match(directory, policy, wanted)
    shapes = layout.flat(policy.shapes())
    places = layout.flat(shardings) if shardings is not None else dict.fromkeys(shapes, one)
    params: dict[str, jax.Array] = {}
    # The largest first: what it takes beyond itself then lies below the final size.
    for path in sorted(shapes, key=lambda p: -max(t.size for t in wanted[p])):
        pieces = [(t, stored[t.name]) for t in wanted[path]]
        params[path] = _load_one(pieces, shapes[path].shape, places[path], jnp.dtype(dtype))
    return jax.tree.unflatten(jax.tree.structure(policy.shapes()), [params[p] for p in shapes])


def save(
    directory: pathlib.Path,
    policy: base.Policy,
    params: base.Params,
    tokenizer: Any,
    dtype: str = "float32",
    max_shard_bytes: int = 5_000_000_000,
    stop_ids: Sequence[int] = (),
) -> None:
    """Writes a model directory that transformers and vLLM load.

    It is complete or not there: everything is written beside it and then renamed. An earlier model
    of that name is replaced; other files of its directory stay. With several processes all must
    call it; the first writes, and has the directory when it returns.

    Args:
      directory: its parent is made if needed.
      policy: of the parameters.
      params: jax or numpy arrays, sharded or not.
      tokenizer: a transformers tokenizer.
      dtype: of the files, `float32` or `bfloat16`.
      max_shard_bytes: of one file, unless a single tensor is larger; several get an index.
      stop_ids: ids at which a program that loads the model should stop (generation_config.json);
        without them it stops at the tokenizer's end of text.

    Raises:
      NotADirectoryError: there is a file of that name; it stays.
    """
    directory = directory.resolve()
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file has the name of the model directory",
                                 str(directory))
    every = [tensor for own in layout.tensors(policy).values() for tensor in own]
    files, flat = _plan(every, dtype, max_shard_bytes), layout.flat(params)
    if jax.process_index() > 0:
        for tensors in files.values():
            for _ in _exported(tensors, flat, dtype):
                pass
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as beside:
        new = pathlib.Path(beside) / "new"
        new.mkdir()
        for name, tensors in files.items():
            specs = {t.name: (dtype, t.shape) for t in tensors}
            tensor_files.write(new / name, specs, _exported(tensors, flat, dtype))
        if len(files) > 1:
            tensor_files.write_index(
                new, {t.name: name for name, tensors in files.items() for t in tensors},
                sum(tensor_files.n_bytes(dtype, t.shape) for t in every))
        _write_config(new / "config.json", policy, tokenizer, dtype)
        tokenizer.save_pretrained(new)
        if stop_ids:
            (new / "generation_config.json").write_text(
                json.dumps({"eos_token_id": sorted(stop_ids)}, indent=2) + "\n")
        _replace(directory, new, pathlib.Path(beside) / "old")


def load_tokenizer(directory: pathlib.Path) -> Any:
    """The transformers tokenizer of a model directory; no network is asked."""
    return hub.transformers().AutoTokenizer.from_pretrained(directory, local_files_only=True)


def ends_of_text(directory: pathlib.Path) -> tuple[int, ...]:
    """Ids that end a text, as generation_config.json and config.json name them, ascending.

    Raises:
      ModelError: a file is no JSON, or its eos_token_id is neither an id nor a list of ids.
    """
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        file = directory / name
        if not file.is_file():
            continue
        try:
            value = json.loads(file.read_text()).get("eos_token_id")
        except (OSError, ValueError, AttributeError) as error:
            raise ModelError(f"{file} cannot be read as a JSON object: {error}") from error
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise ModelError(f"{file}: eos_token_id = {value!r}; make it an id or a list of ids")
        found.update(ids)
    return tuple(sorted(found))


def _match(
    directory: pathlib.Path, policy: base.Policy, wanted: Mapping[str, Sequence[layout.Tensor]]
) -> dict[str, tensor_files.Stored]:
    """The stored tensor of every wanted name."""
    if directory.parent == SIZES:
        name = json.loads((directory / "config.json").read_text())["_name_or_path"]
        raise ModelError(
            f"model.path = {directory.name!r}: only the sizes of this model are shipped, for "
            f"rime_jax.aot; download {name} from https://huggingface.co/{name} and set model.path "
            "to its directory, or take the experiment's size for two cores (FILE.py:tiny)")
    family = families.of(policy)
    shapes = {t.name: t.shape for own in wanted.values() for t in own}
    found: dict[str, tensor_files.Stored] = {}
    unused = []
    for name, tensor in tensor_files.inventory(directory).items():
        canonical = family.canonical(name)
        if canonical is None:
            unused.append(name)
        elif canonical in found:
            raise ModelError(f"{directory}: tensors {found[canonical].name} and {name} are the "
                             "same parameter; remove one")
        else:
            found[canonical] = tensor
    if "head" not in wanted:
        _drop_copy(directory, found, family.hf_names["head"][0], family.hf_names["embed"][0])
    if unused:
        _tell(f"{directory}: {_some(unused)} not used by this text model")
    faults = {
        "missing": [name for name in shapes if name not in found],
        "unexpected": [name for name in found if name not in shapes],
        "of another shape": [
            f"{name} has shape {found[name].shape}, config.json asks for {shape}"
            for name, shape in shapes.items() if name in found and found[name].shape != shape],
    }
    told = [f"{_some(names)} {fault}" for fault, names in faults.items() if names]
    if told:
        raise ModelError(f"{directory}: the *.safetensors files do not hold the model of "
                         f"config.json; " + "; ".join(told))
    return found


def _drop_copy(
    directory: pathlib.Path, found: dict[str, tensor_files.Stored], head: str, embed: str
) -> None:
    """Takes the head out of a tied model's tensors, where it is a copy of the embeddings."""
    copy, original = found.pop(head, None), found.get(embed)
    if copy is None or original is None:
        return
    n = original.shape[0]
    rows = [slice(i, min(i + _COMPARED_ROWS, n)) for i in range(0, n, _COMPARED_ROWS)]
    if copy.shape != original.shape or not all(
            np.array_equal(copy.read((r,)), original.read((r,))) for r in rows):
        raise ModelError(
            f"{directory}: config.json says tie_word_embeddings, but {head} is not {embed}; set it "
            f"to false, or remove {head} from the files")


@functools.cache
def _tell(message: str) -> None:
    """Says it once, though several loads find it."""
    _log.warning(message)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    verb = "is" if len(names) == 1 else "are"
    return f"{len(names)} tensor(s) ({', '.join(names[:_SHOWN])}{more}) {verb}"


def _load_one(
    pieces: Sequence[tuple[layout.Tensor, tensor_files.Stored]], shape: tuple[int, ...],
    place: jax.sharding.Sharding, dtype: Any,
) -> jax.Array:
    """One parameter, filled in place from its tensors."""
    first = pieces[0][0]
    piece_at = _piece_sharding(first, place)

    def read(tensor: tensor_files.Stored) -> jax.Array:
        return jax.make_array_from_callback(tensor.shape, piece_at, tensor.read)

    if first.row is None:
        array = read(pieces[0][1])
        return array if _as_stored(first, array, dtype) else _converter(
            first.form, dtype, place)(array)
    stack = _zeros(shape, dtype, place)()
    put = _putter(first.form, dtype, place)
    for tensor, stored in pieces:
        array = read(stored)
        # Reading overlaps with the last update; without the wait all tensors might be read first.
        jax.block_until_ready(stack)
        stack = put(stack, array, tensor.row)
    return jax.block_until_ready(stack)


# The compiled programs of loading are kept: parameters of one shape share them, as do later loads.


@functools.lru_cache(maxsize=256)
def _zeros(shape: tuple[int, ...], dtype: Any, place: jax.sharding.Sharding) -> Callable:
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=place)


@functools.lru_cache(maxsize=256)
def _converter(form: layout.Form, dtype: Any, place: jax.sharding.Sharding) -> Callable:
    return jax.jit(lambda x: layout.ours(x, form).astype(dtype), out_shardings=place)


@functools.lru_cache(maxsize=256)
def _putter(form: layout.Form, dtype: Any, place: jax.sharding.Sharding) -> Callable:
    def put(stack: jax.Array, x: jax.Array, row: int) -> jax.Array:
        x = layout.ours(x, form).astype(dtype)
        return jax.lax.dynamic_update_index_in_dim(stack, x, row, 0)

    return jax.jit(put, donate_argnums=0, out_shardings=place)


@functools.partial(jax.jit, static_argnames=("form", "rank", "dtype"))
def _export(x: jax.Array, row: int | None, form: layout.Form, rank: int, dtype: str):
    """A parameter, or a row of it, as a tensor of a file."""
    return layout.theirs(x if row is None else x[row], form, rank).astype(dtype)


def _as_stored(tensor: layout.Tensor, array: Any, dtype: Any) -> bool:
    """Whether file and parameter have the same bytes."""
    return array.dtype == dtype and tensor.form.same


def _piece_sharding(tensor: layout.Tensor, place: jax.sharding.Sharding) -> jax.sharding.Sharding:
    """How a file's tensor must lie for `ours` to need no communication, unless features move."""
    if not isinstance(place, jax.sharding.NamedSharding):
        return place
    axes = tensor.form.axes
    rank = len(axes) + (tensor.row is not None)
    spec = (tuple(place.spec) + (None,) * rank)[:rank][-len(axes):]
    by_axis = dict(zip(axes, spec, strict=True))
    return jax.sharding.NamedSharding(
        place.mesh,
        jax.sharding.PartitionSpec(*[by_axis.get(i) for i in range(len(tensor.shape))]))


def _plan(
    tensors: Sequence[layout.Tensor], dtype: str, limit: int
) -> dict[str, list[layout.Tensor]]:
    """File name → its tensors, each file at most `limit` bytes or one tensor."""
    parts: list[list[layout.Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        own = tensor_files.n_bytes(dtype, tensor.shape)
        if parts[-1] and size + own > limit:
            parts.append([])
            size = 0
        parts[-1].append(tensor)
        size += own
    if len(parts) == 1:
        return {"model.safetensors": parts[0]}
    return {f"model-{i + 1:05}-of-{len(parts):05}.safetensors": p for i, p in enumerate(parts)}


def _exported(
    tensors: Sequence[layout.Tensor], params: Mapping[str, Any], dtype: str
) -> Iterator[np.ndarray]:
    """The tensors as files have them, one after another on the host."""
    for tensor in tensors:
        array, row = params[tensor.path], tensor.row
        if isinstance(array, np.ndarray) and row is not None:
            # Only the row shall travel to a device.
            array, row = array[row], None
        if row is not None or not _as_stored(tensor, array, dtype):
            array = _export(array, row, tensor.form, len(tensor.shape), dtype)
        yield _on_host(array)


def _on_host(array: Any) -> np.ndarray:
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def _write_config(file: pathlib.Path, policy: base.Policy, tokenizer: Any, dtype: str) -> None:
    family = families.of(policy)
    fields = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "dtype": dtype,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **family.write(policy.config),
    }
    file.write_text(json.dumps(fields, indent=2) + "\n")


def _replace(directory: pathlib.Path, new: pathlib.Path, old: pathlib.Path) -> None:
    """Puts `new` where `directory` is; its files that are no weights and not in `new` stay."""
    if not directory.exists():
        new.rename(directory)
        return
    directory.rename(old)
    try:
        new.rename(directory)
    except OSError:
        old.rename(directory)
        raise
    for file in old.iterdir():
        if ".safetensors" not in file.name and not (directory / file.name).exists():
            file.rename(directory / file.name)
