"""rime_jax: train a language model to write memories that make its next tasks easier."""

__version__ = "0.1.0"
