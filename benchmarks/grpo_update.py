"""One GRPO update beside TRL's and tunix', on the same weights and sequences, by turns.

    python -m benchmarks.grpo_update --trl=PYTHON --tunix=PYTHON [--size SIZE] [--repeats N]

PYTHON is the interpreter of an environment with `trl` (and torch), or `google-tunix`; what is not
given is left out. Each program runs in a process of its own; one update at a time is computed, so
that a slow moment of the machine hits all, and CPU seconds of all threads are told as well, which
other work on the machine hardly changes.

An update is the reference pass, the loss (clipped objective + k3 KL, mean over the completions'
tokens), its gradient, clipping and AdamW, in float32. Before any time is taken the losses of three
updates in a row must agree: the first shows the same loss, the others the same gradient and
optimiser. Tokens are counted without padding.
"""

import argparse
import dataclasses
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.grpo_peers import task as task_lib
from benchmarks.grpo_peers import worker
from rime_jax.policy import qwen3, weights, words

CHECKED_UPDATES = 3
MODULES = {"ours": "benchmarks.grpo_peers.ours", "TRL": "benchmarks.grpo_peers.trl_peer",
           "tunix": "benchmarks.grpo_peers.tunix_peer"}


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a model and its batch; lengths in tokens."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    vocab: int
    sequences: int
    prompt: int
    completion: int


SIZES = {
    "tiny": Size(32, 64, 2, 2, 128, 4, 8, 24),
    "small": Size(384, 1024, 8, 6, 4096, 8, 128, 384),
    "wide": Size(384, 1024, 8, 6, 32768, 8, 128, 384),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--trl", metavar="PYTHON", help="interpreter with trl")
    parser.add_argument("--tunix", metavar="PYTHON", help="interpreter with google-tunix")
    arguments = parser.parse_args()
    pythons = {"ours": sys.executable}
    pythons |= {name: python for name, python in (
        ("TRL", arguments.trl), ("tunix", arguments.tunix)) if python}
    for mixed in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            task = prepare(pathlib.Path(folder), SIZES[arguments.size], mixed)
            seconds = compare(pathlib.Path(folder), pythons, arguments.repeats)
        print(table(task, mixed, seconds), flush=True)


def prepare(folder: pathlib.Path, size: Size, mixed: bool) -> task_lib.Task:
    """Writes two models that are a little apart, and sequences drawn with a third."""
    policy = make_policy(size)
    tokenizer = words.word_tokenizer(["a"])
    reference = policy.init(jax.random.key(0))

    def near(seed: int, scale: float):
        keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(reference))))
        return jax.tree.map(
            lambda x: x + scale * jnp.std(x) * jax.random.normal(next(keys), x.shape), reference)

    start = near(1, 0.03)
    weights.save(folder / "reference", policy, reference, tokenizer)
    weights.save(folder / "policy", policy, start, tokenizer)
    task = task_lib.draw(size.sequences, (size.prompt, size.completion), size.vocab, mixed,
                         task_lib.Settings())
    task = dataclasses.replace(task, behaviour=completion_logprobs(policy, near(2, 0.03), task))
    task.save(folder)
    return task


def make_policy(size: Size) -> qwen3.Qwen3:
    return qwen3.Qwen3(qwen3.Qwen3Config(
        vocab_size=size.vocab, hidden_size=size.hidden, intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers, num_attention_heads=size.heads,
        num_key_value_heads=size.heads // 2, head_dim=64))


def completion_logprobs(policy: qwen3.Qwen3, params, task: task_lib.Task) -> np.ndarray:
    """float32 [N, C], 0 at padding; the plain way, all logits at once."""
    ids = np.concatenate([task.prompts, task.completions], 1)
    real = (ids != task_lib.PAD).astype(np.int32)
    hidden = policy.forward(params, ids, np.maximum(real.cumsum(1) - 1, 0), real)
    C = task.completions.shape[1]
    logp = jax.nn.log_softmax(policy.logits(params, hidden[:, -C - 1 : -1]))
    picked = jnp.take_along_axis(logp, task.completions[..., None], -1)[..., 0]
    return np.asarray(picked * real[:, -C:], np.float32)


def compare(
    folder: pathlib.Path, pythons: dict[str, str], repeats: int
) -> dict[str, tuple[str, np.ndarray]]:
    """For each program its versions, and [updates, 2] the seconds and CPU seconds of each update.

    Raises:
      AssertionError: the losses differ by more than a ten-thousandth.
    """
    workers = {name: worker.Worker(python, MODULES[name], folder, folder / f"{name}.log")
               for name, python in pythons.items()}
    try:
        for i in range(CHECKED_UPDATES):
            found = {name: w.update()["loss"] for name, w in workers.items()}
            np.testing.assert_allclose(list(found.values()), found["ours"], rtol=1e-4,
                                       err_msg=f"losses of update {i + 1}: {found}")
        rounds = [[w.update() for w in workers.values()] for _ in range(repeats)]
    finally:
        for w in workers.values():
            w.close()
    return {name: (", ".join(f"{k} {v}" for k, v in w.versions.items()),
                   np.array([[found["seconds"], found["cpu_seconds"]] for found in own]))
            for (name, w), own in zip(workers.items(), zip(*rounds, strict=True), strict=True)}


def table(task: task_lib.Task, mixed: bool, found: dict[str, tuple[str, np.ndarray]]) -> str:
    """Seconds and tokens/s of each program, and how many times ours its medians are."""
    n, longest = len(task.prompts), task.prompts.shape[1] + task.completions.shape[1]
    lines = [f"{n} sequences of {'up to ' if mixed else ''}{longest} tokens, "
             f"{task.real_tokens} real tokens", "",
             "| program | seconds, best (median) | tokens/s, best (median) | CPU seconds, median "
             "| times ours: seconds | CPU seconds |",
             "|---|---|---|---|---|---|"]
    ours = np.median(found["ours"][1], axis=0)
    for name, (versions, seconds) in found.items():
        best, (median, cpu) = seconds[:, 0].min(), np.median(seconds, axis=0)
        lines.append(
            f"| {name} ({versions}) | {best:.3f} ({median:.3f}) | {task.real_tokens / best:,.0f} "
            f"({task.real_tokens / median:,.0f}) | {cpu:.3f} | {median / ours[0]:.2f} "
            f"| {cpu / ours[1]:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
