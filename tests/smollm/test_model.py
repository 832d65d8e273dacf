"""A real model gives transformers' numbers: greedy text, log-probabilities, chat, export."""

import asyncio

import jax
import numpy as np
import pytest

from rime_jax.policy import chat as chat_lib
from rime_jax.policy import weights
from rime_jax.sampler import native

pytestmark = pytest.mark.smollm

NEW_TOKENS = 64
# Two tokens closer than this may change places by rounding.
TIE = 1e-4
LOGPROB_TOLERANCE = 1e-3

PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Name three metals that are magnetic.",
    "Explain in one sentence why the sky is blue.",
    "Count from 1 to 12.",
    "Translate 'good morning' into Spanish, German and Italian.",
    "def fibonacci(n):\n    # complete this Python function",
    "What is 17 + 25?",
    "Give me a recipe for pancakes.",
    "Who wrote 'Pride and Prejudice'?",
    "List the planets of the solar system in order.",
    "My dog is called Ärger 🐕. What is my dog called?",
    "Is a tomato a fruit or a vegetable?",
    "Rewrite politely: give me the file now",
    "What comes next: 2, 4, 8, 16, ...?",
    "A stone is large and blue. I dip it in a red potion and it becomes small. What does the red "
    "potion do?",
    "Write a limerick about a mathematician.",
    "Summarise: The cat sat on the mat. It was warm. It fell asleep.",
    "Which entry is pink?\n  1: green\n  2: red\n  3: pink",
    "Say nothing.",
)
SYSTEM = "You answer as briefly as you can."


def conversations():
    """Half with a system message, half with the template's own."""
    for i, prompt in enumerate(PROMPTS):
        user = {"role": "user", "content": prompt}
        yield [{"role": "system", "content": SYSTEM}, user] if i % 2 else [user]


@pytest.fixture(scope="session")
def chat(tokenizer, directory):
    return chat_lib.ChatTokens(tokenizer, ends_of_text=weights.ends_of_text(directory))


@pytest.fixture(scope="session")
def ours(policy, params, chat):
    """Greedy generations of all prompts, decoded together by the native sampler."""
    sampler = native.NativeSampler(
        policy, {"act": "policy"}, chat.stop_ids, slots=len(PROMPTS), context_tokens=192,
        decode_block=32, prefill_chunks=(128,), devices=jax.local_devices()[:1])
    sampler.set_params({"policy": params}, 0)

    async def generate():
        sessions = [sampler.open("act", chat.opening(m), (0,)) for m in conversations()]
        return await asyncio.gather(*(s.generate(NEW_TOKENS, 0.0) for s in sessions))

    return asyncio.run(generate())


@pytest.fixture(scope="session")
def theirs(reference, tokenizer, torch):
    """New ids of transformers' greedy generation in padded batches, end of turn included."""
    found, prompts = [], list(conversations())
    for start in range(0, len(prompts), 10):
        batch = tokenizer.apply_chat_template(
            prompts[start:start + 10], add_generation_prompt=True, return_tensors="pt",
            padding=True, tokenizer_kwargs={"padding_side": "left"})
        with torch.inference_mode():
            out = reference.generate(**batch, do_sample=False, max_new_tokens=NEW_TOKENS)
        for row in out[:, batch["input_ids"].shape[1]:].tolist():
            # Rows that ended early are padded with the same id.
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else None
            found.append(row[:end])
    return found


def test_openings_are_those_of_apply_chat_template(chat, tokenizer):
    for messages in conversations():
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        assert chat.opening(messages) == rendered["input_ids"]


def test_greedy_continuations_are_those_of_transformers(ours, theirs, chat, reference_logprobs):
    identical = 0
    for messages, mine, other in zip(conversations(), ours, theirs, strict=True):
        if mine.ids == other:
            identical += 1
            continue
        at = next(i for i, (a, b) in enumerate(zip(mine.ids, other, strict=False)) if a != b)
        after = reference_logprobs(chat.opening(messages) + other[:at])[-1]
        assert abs(after[mine.ids[at]] - after[other[at]]) <= TIE, chat.decode(mine.ids)
    print(f"{identical} of {len(PROMPTS)} identical")
    assert sum(len(g.ids) for g in ours) > 10 * len(PROMPTS)


def test_sampled_logprobs_are_those_of_transformers(ours, chat, reference_logprobs):
    gaps = []
    for messages, mine in zip(conversations(), ours, strict=True):
        prompt = chat.opening(messages)
        after = reference_logprobs(prompt + mine.ids)[len(prompt) - 1:-1]
        gaps.append(np.abs(after[np.arange(len(mine.ids)), mine.ids] - mine.logprobs).max())
    print(f"largest gap {max(gaps):.1e}")
    assert max(gaps) <= LOGPROB_TOLERANCE


def test_logprobs_of_a_packed_row_are_those_of_transformers(
        policy, params, ours, chat, reference_logprobs):
    sequences = [chat.opening(m) + g.ids for m, g in zip(conversations(), ours, strict=True)][:4]
    lengths = [len(s) for s in sequences]
    tokens = np.concatenate(sequences).astype(np.int32)[None]
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])[None]
    segments = np.repeat(np.arange(1, 5, dtype=np.int32), lengths)[None]

    @jax.jit
    def logprobs(params, tokens, positions, segments):
        hidden = policy.forward(params, tokens, positions, segments)
        return jax.nn.log_softmax(policy.logits(params, hidden))[0]

    packed = np.asarray(logprobs(params, tokens, positions, segments))
    expected = np.concatenate([reference_logprobs(s) for s in sequences])
    gap = np.abs(packed - expected).max()
    print(f"largest gap {gap:.1e} over {packed.size} values")
    assert gap <= LOGPROB_TOLERANCE


def test_an_exported_model_is_the_same_model_to_transformers(
        directory, policy, params, tokenizer, reference_logprobs, torch, tmp_path):
    import transformers

    out = tmp_path / "exported"
    weights.save(out, policy, params, tokenizer)
    again = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    reread = transformers.AutoTokenizer.from_pretrained(out)
    for messages in list(conversations())[:3]:
        ids = reread.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert ids == tokenizer.apply_chat_template(
            messages, add_generation_prompt=True)["input_ids"]
        np.testing.assert_array_equal(
            reference_logprobs(ids, again), reference_logprobs(ids))
