"""Checkpoints: sharded arrays and a small JSON state, one directory per step (Orbax)."""

import contextlib
import json
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

from rime_jax import errors


class CheckpointError(errors.UserError):
    """A checkpoint that does not fit the model; the message names the array and the remedy."""


class SaveError(errors.TransientError):
    """A checkpoint that could not be written; the message says why."""


class Checkpoints:
    """The checkpoints of one run.

    A step directory gets its name when it is complete, so that a kill at any moment leaves the
    checkpoints before it usable. Every process of a multi-host run calls every method.
    """

    def __init__(self, path: str | os.PathLike, keep: int, read_only: bool = False):
        """Opens `path` and clears what an interrupted save left behind.

        Args:
          path: the run's checkpoints/ directory; made if missing.
          keep: number of newest checkpoints that are kept.
          read_only: for readers beside a running training: nothing is made, cleared or saved.
        """
        self._path = pathlib.Path(path).absolute()
        # Several lines a save, warnings about what a kill left half-deleted, and about options of
        # readers; what fails is raised, besides. Adding the filter twice changes nothing.
        logging.getLogger("absl").addFilter(_drop_orbax_reports)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            cleanup_tmp_directories=not read_only,
            create=not read_only,
            read_only=read_only,
        )
        handlers = {"arrays": ocp.PyTreeCheckpointHandler(), "state": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(
            self._path, options=options, item_handlers=handlers
        )

    def save(self, step: int, arrays: Any, state: Mapping[str, Any]) -> None:
        """Saves in the background; returns once the arrays may be donated or changed.

        A step that is already saved is left as it is.

        Args:
          step: number of finished iterations.
          arrays: any tree of JAX or numpy arrays.
          state: JSON values; tuples come back as lists.

        Raises:
          SaveError: the disk refused this save or an earlier one in the background; so do the
            methods that wait.
        """
        if step in self._manager.all_steps():
            return
        # Serialised later, in a thread: what the caller changes by then must not show.
        state = json.loads(json.dumps(state))
        with self._writing():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    arrays=ocp.args.PyTreeSave(_flatten(arrays)),
                    state=ocp.args.JsonSave(state),
                ),
                force=True,
            )

    def latest(self) -> int | None:
        """The newest complete checkpoint's step; None where there is none. Waits for saves."""
        self.wait()
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def restore(self, step: int, abstract_arrays: Any) -> tuple[Any, dict[str, Any]]:
        """Loads a checkpoint onto the devices that `abstract_arrays` names.

        Args:
          step: a saved step.
          abstract_arrays: the tree that was saved, with `jax.ShapeDtypeStruct`s or arrays as
            leaves; their shardings (any mesh) are those of the result. A leaf without one goes to
            the default device.

        Returns:
          (arrays, state).

        Raises:
          CheckpointError: the step is not there, is damaged, or was saved from another model.
        """
        wanted = _flatten(abstract_arrays)
        try:
            restored = self._restored(step, wanted, False, state=ocp.args.JsonRestore())
            leaves = [restored["arrays"][name] for name in wanted]
            return (jax.tree.unflatten(jax.tree.structure(abstract_arrays), leaves),
                    dict(restored["state"]))
        except CheckpointError:
            raise
        except Exception as error:
            raise self._damaged(step, error) from error

    def restore_part(self, step: int, abstract_arrays: Any) -> Any:
        """As `restore`, for some of the arrays that were saved: no others are read.

        Raises:
          CheckpointError: as `restore`.
        """
        wanted = _flatten(abstract_arrays)
        try:
            restored = self._restored(step, wanted, True)
            leaves = [restored["arrays"][name] for name in wanted]
            return jax.tree.unflatten(jax.tree.structure(abstract_arrays), leaves)
        except CheckpointError:
            raise
        except Exception as error:
            raise self._damaged(step, error) from error

    def check_part(self, step: int, abstract_arrays: Any) -> None:
        """What `restore_part` refuses, without reading arrays.

        Raises:
          CheckpointError: as `restore`.
        """
        try:
            self._check_fits(step, _flatten(abstract_arrays), True)
        except CheckpointError:
            raise
        except Exception as error:
            raise self._damaged(step, error) from error

    def wait(self) -> None:
        """Waits until every save is complete."""
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the saves and stops the background threads."""
        with self._writing():
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            # TensorStore has no error of its own for what the system refuses.
            found = re.search(r"([^:]*) \[os_error_code=", str(error))
            if found is not None:
                why = found.group(1).strip()
            elif isinstance(error, OSError):
                why = error.strerror
            else:
                raise
            raise SaveError(
                f"a checkpoint could not be written to {self._path}: {why}. Nothing that was saved "
                "before is lost, and the same command goes on once the cause is gone") from error

    def _restored(self, step: int, wanted: Mapping[str, Any], part: bool, **others: Any) -> Any:
        if step not in self._manager.all_steps():
            raise CheckpointError(
                f"{self._path} has no checkpoint of step {step}; it has "
                f"{self.steps()}"
            )
        self._check_fits(step, wanted, part)
        placed = jax.tree.map(_with_sharding, wanted)
        arrays = ocp.args.PyTreeRestore(
            item=placed, restore_args=ocp.checkpoint_utils.construct_restore_args(placed),
            partial_restore=part)
        return self._manager.restore(step, args=ocp.args.Composite(arrays=arrays, **others))

    def _damaged(self, step: int, error: Exception) -> CheckpointError:
        # Orbax has no error of its own for a damaged file: whatever its parsers raise.
        others = [s for s in self.steps() if s != step]
        return CheckpointError(
            f"checkpoint {self._path / str(step)} is damaged ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}); move it away to continue "
            f"from {f'step {others[-1]}' if others else 'the beginning'}"
        )

    def _check_fits(self, step: int, wanted: Mapping[str, Any], part: bool) -> None:
        # Orbax cuts or fills arrays of another shape, and casts other types, without a word.
        saved = self._manager.item_metadata(step)["arrays"]
        have = {name: (tuple(saved[name].shape), saved[name].dtype) for name in saved}
        want = {name: _shape_and_dtype(leaf) for name, leaf in wanted.items()}
        for name in [*want, *([] if part else have)]:
            if have.get(name) != want.get(name):
                raise CheckpointError(
                    f"checkpoint {self._path / str(step)} was saved from another model: {name} is "
                    f"{_describe(have.get(name))} there and {_describe(want.get(name))} in this "
                    f"configuration. Take model.path from that run's config.json, or give this run "
                    f"another directory (--set run_dir=...)"
                )


def _flatten(tree: Any) -> dict[str, Any]:
    """Leaves by path: independent of the container types, which another version may change."""
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf
            for path, leaf in jax.tree.leaves_with_path(tree)}


def _shape_and_dtype(leaf: Any) -> tuple[tuple[int, ...], Any]:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return tuple(leaf.shape), leaf.dtype


def _with_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _describe(array: tuple[tuple[int, ...], Any] | None) -> str:
    return "absent" if array is None else f"{array[1]}{list(array[0])}"


def _drop_orbax_reports(record: logging.LogRecord) -> bool:
    return record.levelno > logging.ERROR or "orbax" not in record.pathname
