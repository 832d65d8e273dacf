"""Time and peak memory of saving and loading a model directory.

    python -m benchmarks.load_save [--size 4b] [--folder DIR]

Saves random bfloat16 weights of Qwen3's sizes from one CPU device, then loads them back, each in a
process of its own; the files are removed at the end. Needs memory for the model and about 2 GB, and
disk for the model.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
SIZES = {
    # Qwen3-4B's config.json.
    "4b": {
        "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    },
}
PHASES = ("save", "load")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, default="4b")
    parser.add_argument("--folder", type=pathlib.Path, help="where the files lie meanwhile")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.phase:
        print(json.dumps(measure(arguments.phase, arguments.size, arguments.folder)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        found = {phase: _in_own_process(phase, arguments.size, folder) for phase in PHASES}
    print("| | seconds | GB/s | model, GB | peak memory, GB | above model and start, GB |")
    print("|---|---|---|---|---|---|")
    for phase, m in found.items():
        above = m["peak"] - m["start"] - m["model"]
        print(f"| {phase} | {m['seconds']:.1f} | {m['model'] / m['seconds'] / 1e9:.2f} "
              f"| {m['model'] / 1e9:.2f} | {m['peak'] / 1e9:.2f} | {above / 1e9:.2f} |")


def measure(phase: str, size: str, folder: pathlib.Path) -> dict[str, float]:
    """One phase: `seconds`; in bytes `model`, `peak` (resident) and `start` (before any weight)."""
    import jax
    import jax.numpy as jnp

    from rime_jax.policy import qwen3, weights, words

    policy = qwen3.Qwen3(qwen3.Qwen3Config(**SIZES[size]), jnp.dtype("bfloat16"))
    model = sum(2 * math.prod(leaf.shape) for leaf in jax.tree.leaves(policy.shapes()))
    tokenizer = words.word_tokenizer(["word"])
    jax.block_until_ready(jnp.zeros(1))
    start = _memory("VmRSS")
    if phase == "save":
        params = _random(policy.shapes())
        _forget_peak()
        began = time.monotonic()
        weights.save(folder / "model", policy, params, tokenizer, dtype="bfloat16")
    else:
        _drop_from_cache(folder / "model")
        began = time.monotonic()
        jax.block_until_ready(weights.load(folder / "model", policy, dtype=jnp.bfloat16))
    return {"seconds": time.monotonic() - began, "model": model, "peak": _memory("VmHWM"),
            "start": start}


def _in_own_process(phase: str, size: str, folder: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.load_save", "--phase", phase, "--size", size,
               "--folder", folder]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
                          check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _random(shapes):
    """Weights of any values: the counter-based generator is the fastest."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0, impl="rbg")
    make = jax.jit(lambda leaf: jax.random.uniform(key, leaf, jnp.bfloat16), static_argnums=0)
    return jax.tree.map(lambda leaf: jax.block_until_ready(make(leaf.shape)), shapes)


def _memory(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; run on Linux")


def _forget_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def _drop_from_cache(directory: pathlib.Path) -> None:
    """So that loading reads from the disk."""
    for file in directory.iterdir():
        with open(file, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
