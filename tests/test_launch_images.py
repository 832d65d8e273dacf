"""The image recipes name files and versions that there are; building them needs a registry."""

import re

import pytest

from tests import launched

RECIPES = sorted((launched.ROOT / "launch").glob("Containerfile.*"))


def instructions(recipe):
    """[(instruction, its words)], lines that go on joined, comments left out."""
    text = re.sub(r"^#.*\n", "", recipe.read_text(), flags=re.MULTILINE)
    return [(line.split()[0], line.split()[1:])
            for line in text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.name)
def test_what_is_copied_is_there_and_sent_to_the_build(recipe):
    ignored = (launched.ROOT / ".dockerignore").read_text().splitlines()
    for name, words in instructions(recipe):
        if name == "COPY":
            for source in words[:-1]:
                assert (launched.ROOT / source).exists() and source not in ignored


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.name)
def test_instructions_are_known_and_begin_with_a_base_of_a_fixed_version(recipe):
    found = instructions(recipe)
    assert {name for name, _ in found} <= {
        "FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "CMD", "ENTRYPOINT"}
    (base,) = found[0][1]
    assert found[0][0] == "FROM" and re.search(r":v?\d+\.\d+", base)


def test_rollouts_have_the_version_of_vllm_that_was_tried():
    tried = re.search(r'^version="(.+)"$', (launched.ROOT / "launch/setup_vllm.sh").read_text(),
                      re.MULTILINE).group(1)
    recipe = (launched.ROOT / "launch/Containerfile.rollout").read_text()
    assert f"vllm/vllm-openai:v{tried}\n" in recipe


def test_the_trainer_installs_within_the_constraints_what_setup_py_needs():
    recipe = (launched.ROOT / "launch/Containerfile.trainer").read_text()
    assert "--constraint constraints.txt" in recipe
    copied = " ".join(w for name, words in instructions(
        launched.ROOT / "launch/Containerfile.trainer") if name == "COPY" for w in words)
    for needed in ("setup.py", "pyproject.toml", "constraints.txt", "LICENSE", "rime_jax"):
        assert needed in copied
