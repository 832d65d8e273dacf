"""Forward and backward tokens/s beside transformers, on the same weights in one process.

    python -m benchmarks.forward_backward [--size small|tiny] [--repeats N]

Needs torch (extra `parity`). For a Qwen3 and a Qwen3.5 of the same width it writes random weights,
loads them into both programs, checks that the losses agree, and then times the mean token loss and
its gradients by turns, so that a slow moment of the machine hits both. Printed are the best and the
median of each, and the ratio of the medians (ours / transformers', higher is faster).
"""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rime_jax.policy import qwen3, qwen3_5, weights, words

# (hidden, feed-forward, layers, heads, vocabulary, sequences, tokens)
SIZES = {"tiny": (32, 64, 4, 4, 128, 2, 64), "small": (384, 1024, 8, 6, 4096, 4, 512)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    print("| model | parameters | tokens | ours, tokens/s best (median) | transformers | ratio |")
    print("|---|---|---|---|---|---|")
    for name, policy in policies(arguments.size).items():
        print(compare(name, policy, SIZES[arguments.size][5:], arguments.repeats), flush=True)


def policies(size: str) -> dict[str, qwen3.Qwen3 | qwen3_5.Qwen3_5]:
    hidden, ff, layers, heads, vocab, _, _ = SIZES[size]
    shared = dict(vocab_size=vocab, hidden_size=hidden, intermediate_size=ff,
                  num_hidden_layers=layers, num_attention_heads=heads,
                  num_key_value_heads=heads // 2, head_dim=64, tie_word_embeddings=True,
                  rms_norm_eps=1e-6)
    linear = dict(linear_num_key_heads=heads // 2, linear_num_value_heads=heads,
                  linear_key_head_dim=64, linear_value_head_dim=64, linear_conv_kernel_dim=4)
    return {
        "Qwen3": qwen3.Qwen3(qwen3.Qwen3Config(**shared)),
        "Qwen3.5": qwen3_5.Qwen3_5(qwen3_5.Qwen3_5Config(**shared, **linear, rope_theta=1e6)),
    }


def compare(name: str, policy, shape: tuple[int, int], repeats: int) -> str:
    """One row of the table."""
    import torch
    import transformers

    params = policy.init(jax.random.key(0))
    tokens = np.random.default_rng(0).integers(policy.vocab_size, size=shape)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model"
        weights.save(path, policy, params, words.word_tokenizer(["a"]))
        theirs = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ours = ours_step(policy, params, tokens)
    other = torch_step(theirs, torch.from_numpy(tokens))
    np.testing.assert_allclose(ours(), other(), rtol=1e-4)
    times = [(timed(ours), timed(other)) for _ in range(repeats)]
    a, b = (np.array(t) for t in zip(*times, strict=True))
    count, n = tokens.size, sum(x.size for x in jax.tree.leaves(params))
    return (f"| {name} | {n / 1e6:.1f} M | {shape[0]} × {shape[1]} | "
            f"{count / a.min():,.0f} ({count / np.median(a):,.0f}) | "
            f"{count / b.min():,.0f} ({count / np.median(b):,.0f}) | "
            f"{np.median(b) / np.median(a):.2f} |")


def ours_step(policy, params, tokens: np.ndarray) -> Callable[[], float]:
    ids = jnp.asarray(tokens, jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)

    @jax.jit
    def step(params):
        def loss(params):
            hidden = policy.forward(params, ids, positions, jnp.ones_like(ids))
            logp = jax.nn.log_softmax(policy.logits(params, hidden[:, :-1]))
            return -jnp.take_along_axis(logp, ids[:, 1:, None], -1).mean()

        return jax.value_and_grad(loss)(params)

    return lambda: float(jax.block_until_ready(step(params))[0])


def torch_step(model, tokens) -> Callable[[], float]:
    model.train()

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        return loss.item()

    return step


def timed(step: Callable[[], float]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
