"""Generation beside transformers and a vLLM server, same weights; and the devices' idle share.

    python -m benchmarks.generation --model=DIR [--url=http://127.0.0.1:8000] [--sessions=64]

Needs torch (extra `parity`). A Qwen3 of about 20 million random weights is written to --model if
nothing is there; a vLLM server to compare with serves that directory (docs/vllm.md). Each of the
sessions opens with a prompt and takes several turns: it samples a number of tokens that was drawn
beforehand, then a message is appended. All see the same prompts, messages and numbers; what they
sample differs. Counted are sampled tokens per second of the whole:

- ours: `NativeSampler`, all sessions at once; a session keeps its slot between turns;
- transformers: `generate` for all sessions as one padded batch, turn by turn;
- vLLM: one completion request per turn and session, all sessions at once; prefix caching as the
  server is set.

Each is warmed up with the whole work once, then all are timed by turns, so that a slow moment of
the machine hits all. The idle share is that of our devices while an environment takes 0 to 2
seconds, evenly drawn, between two turns: from the first round until the first session has ended.
"""

import argparse
import asyncio
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import time
import urllib.request
from collections.abc import Callable

# Before jax starts: sampling on one virtual device keeps only about one core busy.
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={os.cpu_count()}")

import jax
import numpy as np

from rime_jax.policy import qwen3, weights, words
from rime_jax.sampler import native

PROMPT, MESSAGE = 96, 24
# Smallest and largest number of tokens of a turn, as (low, high + 1).
NEW = (16, 49)


@dataclasses.dataclass(frozen=True)
class Work:
    """Prompts [S, PROMPT], messages [S, turns, MESSAGE] and sampled tokens [S, turns]."""

    prompts: np.ndarray
    messages: np.ndarray
    new: np.ndarray

    @property
    def context(self) -> int:
        return PROMPT + int((self.new + MESSAGE).sum(1).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--url", help="of a vLLM server that serves --model")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--block", type=int, default=8, help="sampler.decode_block")
    parser.add_argument("--idle-sessions", type=int, nargs="*", default=[192],
                        help="numbers of sessions to measure the idle share with; none: do not")
    parser.add_argument("--size", choices=("small", "tiny"), default="small")
    parser.add_argument("--ours-only", action="store_true", help="without transformers")
    arguments = parser.parse_args()
    if not arguments.model.exists():
        write_model(arguments.model, arguments.size)
    policy = weights.make_policy(arguments.model, "float32", "none", "auto")
    work = draw(policy.vocab_size, arguments.sessions, arguments.turns, 0)
    programs = {"ours": ours(policy, arguments.model, work, arguments.block)}
    if not arguments.ours_only:
        programs["transformers"] = transformers_batches(arguments.model, work)
    if arguments.url:
        programs["vLLM"] = vllm_requests(arguments.url, work)
    print(table(programs, int(work.new.sum()), arguments.repeats), flush=True)
    for sessions in arguments.idle_sessions:
        many = draw(policy.vocab_size, sessions, arguments.turns, 1)
        share, rate = idle_share(policy, arguments, many)
        print(f"\nidle share with {sessions} sessions and environments of 0 to 2 s: "
              f"{share:.1%} ({rate:,.0f} tokens/s)", flush=True)


def write_model(path: pathlib.Path, size: str) -> None:
    hidden, layers, vocab = {"small": (384, 8, 16384), "tiny": (64, 2, 256)}[size]
    policy = qwen3.Qwen3(qwen3.Qwen3Config(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers, num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128), head_dim=64))
    weights.save(path, policy, policy.init(jax.random.key(0)), words.word_tokenizer(["a"]))


def draw(vocabulary: int, sessions: int, turns: int, seed: int) -> Work:
    rng = np.random.default_rng(seed)
    return Work(rng.integers(vocabulary, size=(sessions, PROMPT)),
                rng.integers(vocabulary, size=(sessions, turns, MESSAGE)),
                rng.integers(*NEW, size=(sessions, turns)))


def table(programs: dict[str, Callable[[], None]], tokens: int, repeats: int) -> str:
    """Tokens/s of each, best and median, and our median over theirs."""
    for run in programs.values():
        run()
    times = {name: [] for name in programs}
    for _ in range(repeats):
        for name, run in programs.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    lines = ["| | tokens/s best (median) | ours is |", "|---|---|---|"]
    for name, own in times.items():
        ratio = np.median(own) / np.median(times["ours"])
        lines.append(f"| {name} | {tokens / min(own):,.0f} ({tokens / np.median(own):,.0f}) | "
                     f"{ratio:.2f} × |")
    return "\n".join(lines)


def make_sampler(policy, model: pathlib.Path, work: Work, slots: int, block: int):
    sampler = native.NativeSampler(
        policy, {"act": "policy"}, (), slots=slots, context_tokens=-(-work.context // 64) * 64,
        decode_block=block, prefill_chunks=(8, 32))
    sampler.set_params({"policy": weights.load(model, policy)}, 0)
    sampler.warm_up()
    return sampler


async def play(sampler, work: Work, pause: Callable[[], float] | None = None) -> None:
    """All sessions at once; returns when all, or with pauses when the first, have ended."""

    async def one(i: int) -> None:
        session = sampler.open("act", work.prompts[i].tolist(), (i,))
        for n, message in zip(work.new[i].tolist(), work.messages[i].tolist(), strict=True):
            await session.generate(n)
            session.extend(message)
            if pause:
                await asyncio.sleep(pause())
        session.close()

    tasks = [asyncio.create_task(one(i)) for i in range(len(work.prompts))]
    _, unfinished = await asyncio.wait(
        tasks, return_when=asyncio.FIRST_COMPLETED if pause else asyncio.ALL_COMPLETED)
    for task in unfinished:
        task.cancel()


def ours(policy, model: pathlib.Path, work: Work, block: int) -> Callable[[], None]:
    groups = len(jax.local_devices())
    slots = -(-len(work.prompts) // groups) * groups
    sampler = make_sampler(policy, model, work, slots, block)
    return lambda: asyncio.run(play(sampler, work))


def idle_share(policy, arguments: argparse.Namespace, work: Work) -> tuple[float, float]:
    rng = np.random.default_rng(2)
    sampler = make_sampler(policy, arguments.model, work, len(work.prompts), arguments.block)

    async def watched() -> tuple[float, float]:
        began = time.monotonic()
        await play(sampler, work, lambda: rng.uniform(0, 2))
        # At once, while a round is under way: the end of the loop waits for it.
        seconds = time.monotonic() - began
        return 1 - sampler.busy_s / seconds, sampler.generated_tokens / seconds

    return asyncio.run(watched())


def transformers_batches(model: pathlib.Path, work: Work) -> Callable[[], None]:
    import torch
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def run() -> None:
        conversations = [row.tolist() for row in work.prompts]
        for turn in range(work.new.shape[1]):
            longest = max(map(len, conversations))
            ids = torch.zeros(len(conversations), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for i, own in enumerate(conversations):
                ids[i, longest - len(own):] = torch.tensor(own)
                mask[i, longest - len(own):] = 1
            new = work.new[:, turn]
            with torch.inference_mode():
                out = theirs.generate(
                    ids, attention_mask=mask, do_sample=True, top_k=0, pad_token_id=0,
                    eos_token_id=None, max_new_tokens=int(new.max()),
                    min_new_tokens=int(new.max()))
            for i, own in enumerate(conversations):
                own += out[i, longest : longest + new[i]].tolist()
                own += work.messages[i, turn].tolist()

    return run


def vllm_requests(url: str, work: Work) -> Callable[[], None]:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as answer:
        model = json.load(answer)["data"][0]["id"]

    def complete(ids: list[int], tokens: int) -> list[int]:
        body = {"model": model, "prompt": ids, "max_tokens": tokens, "min_tokens": tokens,
                "ignore_eos": True, "temperature": 1.0, "logprobs": 1, "return_token_ids": True}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["choices"][0]["token_ids"]

    def one(i: int) -> None:
        ids = work.prompts[i].tolist()
        for n, message in zip(work.new[i].tolist(), work.messages[i].tolist(), strict=True):
            ids += complete(ids, n) + message

    def run() -> None:
        with concurrent.futures.ThreadPoolExecutor(len(work.prompts)) as pool:
            list(pool.map(one, range(len(work.prompts))))

    return run


if __name__ == "__main__":
    main()
