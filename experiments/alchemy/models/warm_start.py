"""The warm start of the small policy: supervised training on scripted demonstrations.

Used by: python -m rime_jax.warm_start. Watch: the loss of policy tokens.
"""

from rime_jax import config


def get_config():
    c = config.default()
    c.name = "warm_start"
    return c
