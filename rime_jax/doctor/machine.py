"""What this machine is: versions, devices, sandboxes. Nothing here needs a configuration."""

import glob
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from packaging import requirements

import rime_jax
from rime_jax.doctor.findings import Finding
from rime_jax.envs.codebase import backends, sandbox

# Shown in this order; those of the second row belong to extras.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers",
             "tokenizers", "safetensors", "tensorboard")
_OPTIONAL = ("libtpu", "jax-cuda13-plugin", "torch", "plotly")

# Of what a run may be told through the environment; whatever could hold a key is not among them.
_VARIABLES = ("JAX_PLATFORMS", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_COMPILATION_CACHE_DIR",
              "RIME_VENV", "RIME_PYTHON", "RIME_VLLM_VENV", "RIME_VLLM_PYTHON", "RIME_VLLM_WAIT")

# A device that another program holds lets the first question wait without end.
_DEVICES_S = 120.0

# In a process of its own: it may hang, and it must not keep the devices.
_LIST_DEVICES = """
import json, jax
found = jax.local_devices()
total = float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((8, 8))))
memory = (found[0].memory_stats() or {}).get("bytes_limit", 0)
print(json.dumps([found[0].platform, found[0].device_kind, len(found), memory, total]))
"""


def versions() -> Iterator[Finding]:
    """The programs and packages, compared with what the installed rime_jax asks for."""
    yield Finding("versions", "python", "ok", f"{platform.python_version()} ({sys.platform}, "
                  f"{platform.machine()}, {os.cpu_count()} cores)")
    yield Finding("versions", "rime_jax", "ok", f"{rime_jax.__version__} "
                  f"in {pathlib.Path(rime_jax.__file__).parents[1]}")
    wanted = _wanted()
    for name in (*_PACKAGES, *_OPTIONAL):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name in _PACKAGES:
                yield Finding("versions", name, "bad", "not installed",
                              "launch/install.sh, or pip install -e . in the checkout")
            continue
        asked = wanted.get(name)
        if asked is not None and not asked.contains(version, prereleases=True):
            yield Finding("versions", name, "bad", f"{version}, and rime_jax asks for {asked}",
                          "pip install -c constraints.txt -e . in the checkout")
        else:
            yield Finding("versions", name, "ok", version)


def _wanted() -> dict[str, requirements.SpecifierSet]:
    """What the installed package asks for without extras; nothing for a bare checkout."""
    try:
        lines = importlib.metadata.requires("rime_jax") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    parsed = [requirements.Requirement(line) for line in lines]
    return {r.name: r.specifier for r in parsed
            if r.marker is None or r.marker.evaluate({"extra": ""})}


def variables() -> Iterator[Finding]:
    """Those of the environment that change what runs."""
    for name in _VARIABLES:
        if name in os.environ:
            yield Finding("environment", name, "note", os.environ[name])


def devices() -> Iterator[Finding]:
    """What jax computes on, asked in a process of its own; and what it does not see."""
    try:
        done = subprocess.run([sys.executable, "-c", _LIST_DEVICES], capture_output=True, text=True,
                              timeout=_DEVICES_S)
    except subprocess.TimeoutExpired:
        yield Finding("devices", "jax", "bad", f"no answer within {_DEVICES_S:.0f} s",
                      "another program may hold the devices; and on one host of a TPU slice jax "
                      "waits for the others")
        return
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        yield Finding("devices", "jax", "bad", words[-1][:300],
                      "the whole message: python -c 'import jax; print(jax.devices())'")
        return
    kind, model, count, memory, _ = json.loads(done.stdout.splitlines()[-1])
    size = f", {memory / 2**30:.0f} GiB each" if memory else ""
    yield Finding("devices", kind, "ok", f"{count} × {model}{size}")
    for name, extra in _unseen(kind):
        yield Finding("devices", name, "bad", "is in this machine, and jax does not see it",
                      f"launch/install.sh {extra}")


def _unseen(kind: str) -> Iterator[tuple[str, str]]:
    """(hardware, extra) that is here while jax computes on `kind`, unless it was told to."""
    if os.environ.get("JAX_PLATFORMS"):
        return
    if kind != "gpu" and shutil.which("nvidia-smi"):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
        if listed.returncode == 0 and "GPU" in listed.stdout:
            yield "NVIDIA GPU", "gpu"
    if kind != "tpu" and glob.glob("/dev/accel[0-9]*"):
        yield "TPU", "tpu"


def sandboxes(asked: str | None = None) -> Iterator[Finding]:
    """Which backends of `env.sandbox` work here.

    Args:
      asked: the one that a configuration needs; None: none is needed.
    """
    for name in backends.NAMES:
        if name not in ("auto", "unsafe") or name == asked:
            yield _sandbox(name, name == asked)


def _sandbox(name: str, asked: bool) -> Finding:
    try:
        box = backends.make(name, sandbox.Limits(timeout_s=60.0))
    except sandbox.SandboxError as error:
        return Finding("sandboxes", name, "bad" if asked else "note", _line(error))
    try:
        # A container needs its image, which may not be there and need not be.
        if not asked and name != "bubblewrap":
            return Finding("sandboxes", name, "ok", "answers (no command was run in it)")
        with tempfile.TemporaryDirectory() as place:
            os.chmod(place, 0o755)
            workspace = box.open(sandbox.Base(pathlib.Path(place)))
            try:
                done = workspace.run("echo works")
            finally:
                workspace.close()
    except sandbox.SandboxError as error:
        return Finding("sandboxes", name, "bad" if asked else "note", _line(error))
    finally:
        box.close()
    if done.exit_code or "works" not in done.output:
        return Finding("sandboxes", name, "bad" if asked else "note",
                       f"runs no commands: {_line(done.output)}")
    return Finding("sandboxes", name, "ok", "ran a command")


def _line(text: object) -> str:
    return " ".join(str(text).split())[-400:]
