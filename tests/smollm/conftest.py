"""SmolLM2-135M-Instruct twice: in transformers, and in our parameters. Set up by launch/smollm.sh.

Both compute in float32 on the CPU; the weights are those that the quantised file stands for.
"""

import pathlib

import pytest

from experiments.alchemy.models import smollm

SKIPPED = "no model in {}; launch/smollm.sh makes it and runs these tests"


@pytest.fixture(scope="session")
def directory():
    path = pathlib.Path(smollm.MODEL)
    if not (path / "config.json").is_file():
        pytest.skip(SKIPPED.format(path))
    return path


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed; use launch/smollm.sh")


@pytest.fixture(scope="session")
def reference(directory, torch):
    """transformers' model."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer(directory):
    from rime_jax.policy import weights

    return weights.load_tokenizer(directory)


@pytest.fixture(scope="session")
def policy(directory):
    from rime_jax.policy import weights

    return weights.make_policy(directory, "float32", "none")


@pytest.fixture(scope="session")
def params(directory, policy):
    from rime_jax.policy import weights

    return weights.load(directory, policy)


@pytest.fixture(scope="session")
def reference_logprobs(reference, torch):
    """Ids of one sequence → log-probabilities [T, V] after each of them, in numpy."""

    def compute(ids, model=reference):
        with torch.inference_mode():
            return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0], -1).numpy()

    return compute
