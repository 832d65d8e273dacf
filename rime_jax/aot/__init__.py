"""Proof that a run fits a TPU slice before it is booked: `python -m rime_jax.aot --help`."""
