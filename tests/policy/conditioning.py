"""Random models whose outputs rounding does not move."""

import jax


def slow_decays(params):
    """The same parameters, with delta layers that remember twenty times as long.

    Layers that forget at once leave single products of a query and a key, some of them near 0, and
    the norm behind divides by those: rounding alone then moves logits by a thousandth.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x - 3 if path[-1].key == "decay" else x, params)
