"""The update's speed by model size, and its memory by sequence length and vocabulary.

    python -m benchmarks.update_scaling [--size small|tiny] [--repeats N]

Speed: whole updates of Qwen3 policies in float32 with full rows, tokens/s, best and median, and the
FLOP/s of the model's own products (`mfu.update_flops`).

Memory: update programs of a narrow policy that are compiled and not run; XLA's peak of temporary
memory. Two vocabularies are compared: were the logits of all tokens held at a time, the larger one
would cost what the last column says.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np

from rime_jax import config as config_lib
from rime_jax import mfu
from rime_jax.learner import batch as batch_lib
from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import update as update_lib
from rime_jax.policy import qwen3

# Of speed: (width, layers) of each model, rows, tokens of a row.
# Of memory: vocabularies, tokens of a row.
SIZES: dict[str, tuple[Any, ...]] = {
    "tiny": (((32, 2),), 2, 32, (1024, 131072), (512, 1024)),
    "small": (((128, 4), (256, 6), (384, 8), (512, 8)), 4, 512,
              (8192, 151936), (1024, 2048, 4096, 8192)),
}
SPEED_VOCAB = 4096
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    models, rows, tokens, vocabularies, lengths = SIZES[arguments.size]
    print("| width × layers | parameters | tokens/s, best (median) | GFLOP/s |")
    print("|---|---|---|---|")
    for width, layers in models:
        print(speed(width, layers, rows, tokens, arguments.repeats), flush=True)
    small, large = vocabularies
    print(f"\n| tokens of the row | MiB, vocabulary {small:,} | vocabulary {large:,} | difference "
          "| of all logits |")
    print("|---|---|---|---|---|")
    for length in lengths:
        a, b = (temporary_bytes(vocab, length) / MIB for vocab in vocabularies)
        logits = length * (large - small) * 4 / MIB
        print(f"| {length:,} | {a:,.0f} | {b:,.0f} | {b - a:,.0f} | {logits:,.0f} |", flush=True)


def speed(width: int, layers: int, rows: int, tokens: int, repeats: int) -> str:
    """One row of the table."""
    policy = make_policy(width, layers, SPEED_VOCAB)
    learner, config = make_learner(policy, rows, tokens)
    batch = full_batch(rows, tokens, policy.vocab_size)
    state = learner.init({"policy": policy.init(jax.random.key(0))})
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        state, _ = learner.step(state, {"policy": [batch]})
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - began)
    best, median = min(seconds[1:]), np.median(seconds[1:])
    work = mfu.update_flops(policy.config, {"policy": [batch]}, config.learner)
    count = sum(x.size for x in jax.tree.leaves(policy.shapes()))
    return (f"| {width} × {layers} | {count / 1e6:.1f} M | {rows * tokens / best:,.0f} "
            f"({rows * tokens / median:,.0f}) | {work / best / 1e9:.0f} |")


def temporary_bytes(vocab: int, tokens: int) -> int:
    """XLA's peak of temporary memory of an update of one row, with layers recomputed."""
    learner, _ = make_learner(make_policy(64, 2, vocab, remat="layer"), 1, tokens)
    return learner.lower_update(1).compile().memory_analysis().temp_size_in_bytes


def make_policy(width: int, layers: int, vocab: int, remat: str = "none") -> qwen3.Qwen3:
    heads = max(2, width // 64)
    return qwen3.Qwen3(qwen3.Qwen3Config(
        vocab_size=vocab, hidden_size=width, intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
        head_dim=64), remat=remat)


def make_learner(policy: qwen3.Qwen3, rows: int, tokens: int) -> tuple[update_lib.Learner, Any]:
    """On one device."""
    config = config_lib.default()
    config.learner.microbatch_rows, config.learner.row_tokens = rows, tokens
    mesh = mesh_lib.make_mesh(config.learner, jax.local_devices()[:1])
    return update_lib.Learner(policy, config, mesh), config


def full_batch(rows: int, tokens: int, vocab: int) -> batch_lib.Batch:
    """Random tokens, each row one sequence of which the second half is trained."""
    rng = np.random.default_rng(0)
    trained = np.arange(tokens) >= tokens // 2
    return batch_lib.pack(
        [batch_lib.Trainable(
            key=(0, i, 0), ids=rng.integers(vocab, size=tokens, dtype=np.int32),
            roles=trained.astype(np.int8), weights=trained.astype(np.float32),
            advantages=np.where(trained, rng.standard_normal(), 0).astype(np.float32),
            behaviour=np.where(trained, -np.log(vocab), 0).astype(np.float32))
         for i in range(rows)], tokens, rows)


if __name__ == "__main__":
    main()
