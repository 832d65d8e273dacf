"""A small untrained policy for any text: one id a byte, ChatML's turns.

    python -m rime_jax.policy.characters --out=DIR

writes rime_jax/assets/tiny-bytes-v1. It has learnt nothing: what it samples are random bytes. It
serves to run everything around a policy where no language model can be had.
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

import jax

from rime_jax.policy import hub, qwen3, weights

PAD, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CONFIG = qwen3.Qwen3Config(
    vocab_size=3 + 256, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=32_768,
)


def byte_tokenizer() -> Any:
    """A transformers tokenizer whose vocabulary is three markers and the 256 bytes."""
    import tokenizers

    markers = (PAD, START_OF_TURN, END_OF_TURN)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocab={word: i for i, word in enumerate((*markers, *alphabet))}, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = hub.transformers().PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END_OF_TURN, pad_token=PAD,
        additional_special_tokens=[START_OF_TURN])
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, type=pathlib.Path, help="model directory to write")
    parser.add_argument("--seed", type=int, default=0, help="of the random parameters")
    arguments = parser.parse_args(argv)
    policy = qwen3.Qwen3(CONFIG)
    weights.save(arguments.out, policy, policy.init(jax.random.key(arguments.seed)),
                 byte_tokenizer())
    print(f"saved {arguments.out}; use it with --set model.path={arguments.out}")


if __name__ == "__main__":
    main()
