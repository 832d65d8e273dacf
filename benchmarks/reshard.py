"""From the learner's float32 parameters, divided over the devices, to bfloat16 sampling copies.

    python -m benchmarks.reshard [--size small|tiny] [--repeats N]

On eight virtual CPU devices, for several meshes of the learner and groups of the sampler. Seconds
are best (median), beside the plain way: cast, then `jax.device_put`. Memory is XLA's, of one
device: the parameters given, the copy made, and what the program needs meanwhile. The devices share
one memory and the cores, so that seconds say how much is copied, not what a network makes of it.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rime_jax import config as config_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.policy import qwen3
from rime_jax.policy.base import narrow
from rime_jax.sampler import reshard

DEVICES = 8
# (hidden, feed-forward, layers, heads, vocabulary)
SIZES = {"tiny": (64, 128, 2, 8, 512), "small": (768, 2048, 12, 16, 32768)}
# (data, fsdp, tensor) of the learner, and devices of a sampler's group.
LAYOUTS = (((1, 8, 1), 1), ((1, 8, 1), 4), ((1, 4, 2), 2), ((2, 2, 2), 8))
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    policy = make_policy(arguments.size)
    count = sum(x.size for x in jax.tree.leaves(policy.shapes()))
    print(f"{count / 1e6:.1f} M parameters\n")
    print("| learner (data, fsdp, tensor) | sampler's groups | seconds | cast and device_put "
          "| MiB of a device: given | made | meanwhile |")
    print("|---|---|---|---|---|---|---|")
    for sizes, group in LAYOUTS:
        print(measure(policy, sizes, group, arguments.repeats), flush=True)


def make_policy(size: str) -> qwen3.Qwen3:
    hidden, ff, layers, heads, vocab = SIZES[size]
    return qwen3.Qwen3(qwen3.Qwen3Config(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=ff, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=hidden // heads,
    ), jnp.dtype("bfloat16"))


def measure(policy: qwen3.Qwen3, sizes: tuple[int, ...], group: int, repeats: int) -> str:
    """One row of the table."""
    mesh = learner_mesh(sizes)
    at = mesh_lib.shardings(mesh, policy.logical_axes(), policy.shapes())
    params = jax.jit(policy.init, out_shardings=at)(jax.random.key(0))
    program = reshard.Reshard(policy, jax.devices(), group)
    cast = jax.jit(lambda p: reshard.unstack(narrow(policy, p)))
    ways = [lambda: program(params), lambda: jax.device_put(cast(params), program.params_at)]
    times = np.array([[timed(way) for way in ways] for _ in range(repeats + 1)])[1:]
    memory = reshard.lower_reshard(policy, mesh, group).compile().memory_analysis()
    seconds = [f"{t.min():.2f} ({np.median(t):.2f})" for t in times.T]
    mib = [f"{x / MIB:.1f}" for x in (memory.argument_size_in_bytes, memory.output_size_in_bytes,
                                      memory.temp_size_in_bytes)]
    return f"| {sizes} | {DEVICES // group} × {group} | " + " | ".join(seconds + mib) + " |"


def learner_mesh(sizes: tuple[int, ...]) -> Any:
    config = config_lib.default().learner
    for axis, size in zip(mesh_lib.AXES, sizes, strict=True):
        config[f"mesh_{axis}"] = size
    return mesh_lib.make_mesh(config, jax.devices())


def timed(way: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(way())
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
