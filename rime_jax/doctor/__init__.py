"""What to fix before a run, in words for an issue: `python -m rime_jax.doctor --help`."""
