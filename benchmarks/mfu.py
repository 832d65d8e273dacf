"""Model-FLOPs utilisation of the update, and the sampler's tokens/s, on the devices that are there.

    python -m benchmarks.mfu [--model NAME] [--repeats N]

The learner's own step and the native sampler, with random weights: bfloat16 activations, float32
parameters and Adam, full rows, layers recomputed, the platform's fused attention. Without --model
it takes the largest size whose training state fits the devices. MFU counts the products that the
model needs, not what is recomputed (`rime_jax.mfu`), against the dense bfloat16 peak of
`rime_jax.aot.hardware`, which is printed; where that peak is not known (a CPU) there is no MFU.
"""

import argparse
import asyncio
import dataclasses
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import update_scaling
from rime_jax import config as config_lib
from rime_jax import mfu
from rime_jax.aot import hardware
from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import update as update_lib
from rime_jax.policy import qwen3
from rime_jax.sampler import native

# Parameters, their gradient and its sum, and Adam's two moments, all float32; the sampler's copy.
BYTES_PER_PARAMETER = 5 * 4 + 2
# Of the devices' memory; the rest is for activations, logits and caches.
STATE_SHARE = 0.7
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Load:
    """Of one device: rows of an update and their tokens; sampler's slots, prompt and reply."""

    rows: int
    row_tokens: int
    slots: int
    prompt: int
    reply: int


SMALL, LARGE = Load(2, 128, 4, 32, 16), Load(4, 4096, 64, 512, 256)


def _qwen3(hidden: int, ff: int, layers: int, heads: int, kv: int, **more: Any) -> Any:
    return qwen3.Qwen3Config(**{
        "vocab_size": 151936, "hidden_size": hidden, "intermediate_size": ff,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
        "head_dim": 128, **more})


# Ascending; from 0.6b on the published sizes of Qwen3.
MODELS = {
    "tiny": _qwen3(64, 128, 2, 4, 2, head_dim=32, vocab_size=512),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, 8),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, 8),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    devices = jax.local_devices()
    memory = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    limit = memory["bytes_limit"] * len(devices) if memory else 0
    name = arguments.model or largest(limit)
    policy = make_policy(name)
    peak = hardware.peak_flops(devices[0].device_kind)
    told = f"taken to do {peak / 1e12:.0f} TFLOP/s" if peak else "peak unknown"
    print(f"{name}, {parameters(policy) / 1e6:,.1f} M parameters; {len(devices)} × "
          f"{devices[0].device_kind}, {told}")
    load = LARGE if memory else SMALL
    learned = measure_update(policy, devices, load, peak, arguments.repeats)
    measure_sampler(policy, devices, load, learned, arguments.repeats)


def largest(limit: int) -> str:
    """The largest model whose training state leaves room in `limit` bytes of all devices."""
    fitting = [name for name in MODELS
               if parameters(make_policy(name)) * BYTES_PER_PARAMETER <= STATE_SHARE * limit]
    return fitting[-1] if fitting else next(iter(MODELS))


def make_policy(name: str) -> qwen3.Qwen3:
    return qwen3.Qwen3(MODELS[name], jnp.dtype("bfloat16"), remat="layer")


def parameters(policy: qwen3.Qwen3) -> int:
    return sum(math.prod(x.shape) for x in jax.tree.leaves(policy.shapes()))


def measure_update(
    policy: qwen3.Qwen3, devices: list[Any], load: Load, peak: float | None, repeats: int
) -> Any:
    """Prints speed, MFU and memory of the update; returns the parameters after it."""
    config = config_lib.default()
    config.learner.mesh_data, config.learner.mesh_fsdp = 1, -1
    rows = load.rows * len(devices)
    config.learner.microbatch_rows, config.learner.row_tokens = rows, load.row_tokens
    learner = update_lib.Learner(policy, config, mesh_lib.make_mesh(config.learner, devices))
    params = jax.jit(policy.init, out_shardings=learner.params_at)(jax.random.key(0))
    state = learner.start({"policy": params})
    batch = update_scaling.full_batch(rows, load.row_tokens, policy.vocab_size)
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        state, found = learner.step(state, {"policy": [batch]})
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - began)
    if not np.isfinite(found["policy/loss"]):
        raise RuntimeError("the loss of the random policy is not finite; what is timed is broken")
    median = float(np.median(seconds[1:]))
    work = mfu.update_flops(policy.config, {"policy": [batch]}, config.learner)
    share = (f"MFU {mfu.utilisation(work, median, len(devices), peak):.1%}" if peak
             else "no MFU: peak unknown")
    used = devices[0].memory_stats()
    memory = f", peak memory {used['peak_bytes_in_use'] / GIB:.1f} GiB" if used else ""
    print(f"update: {rows} rows of {load.row_tokens} tokens, {median:.3f} s (first "
          f"{seconds[0]:.1f} s with compilation), {rows * load.row_tokens / median:,.0f} tokens/s, "
          f"{work / median / 1e12:.3f} TFLOP/s, {share}{memory}", flush=True)
    return state.params["policy"]


def measure_sampler(
    policy: qwen3.Qwen3, devices: list[Any], load: Load, params: Any, repeats: int
) -> None:
    """Prints the sampler's speed with all slots in use."""
    context = load.prompt + load.reply
    slots = load.slots * len(devices)
    options = config_lib.default().sampler
    sampler = native.NativeSampler(
        policy, {"act": "policy"}, stop_ids=(), slots=slots, context_tokens=context,
        decode_block=options.decode_block, prefill_chunks=(options.prefill_chunks[0], load.prompt),
        devices=devices)
    rng = np.random.default_rng(0)

    async def one(seed: int) -> int:
        session = sampler.open("act", rng.integers(policy.vocab_size, size=load.prompt).tolist(),
                               (seed,))
        try:
            return len((await session.generate(load.reply)).ids)
        finally:
            session.close()

    async def rounds() -> list[float]:
        await sampler.publish({"policy": params}, 0)
        sampler.warm_up()
        speeds = []
        for r in range(repeats):
            began = time.perf_counter()
            made = await asyncio.gather(*(one(r * slots + i) for i in range(slots)))
            speeds.append(sum(made) / (time.perf_counter() - began))
        return speeds

    print(f"sampler: {slots} sessions, prompts of {load.prompt} and replies of {load.reply} "
          f"tokens, {np.median(asyncio.run(rounds())):,.0f} generated tokens/s")


if __name__ == "__main__":
    main()
