"""One of several processes that update together; test_processes.py starts them.

    python -m tests.learner.process_main PORT PROCESSES PROCESS OUT MESH...
"""

import math
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils


def main(port, processes, process, out, *meshes):
    """Writes, for each mesh `data,fsdp,tensor`, what three updates of the global batch give."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    found = {}
    for mesh in meshes:
        for name, value in three_updates(mesh).items():
            found[f"{mesh} {name}"] = value
    if int(process) == 0:
        np.savez(out, **found)


def three_updates(mesh):
    # Makes arrays when it is imported.
    from tests.learner import updating

    sizes = dict(zip(("mesh_data", "mesh_fsdp", "mesh_tensor"), map(int, mesh.split(",")),
                     strict=True))
    config = updating.make_config(microbatch_rows=8, row_tokens=32, lr=1e-3, kl_coef=0.5,
                                  reference_memory="host", **sizes)
    learner = updating.learner(config, math.prod(sizes.values()))
    first = jax.process_index() * learner.local_rows
    own = jax.tree.map(
        lambda x: x[:, first:first + learner.local_rows] if x.ndim == 3 else x,
        updating.pack(config, updating.sequences()))
    state = learner.init({"policy": updating.PARAMS})
    reference = learner.reference(updating.POLICY.init(jax.random.key(1)))
    for _ in range(3):
        state, metrics = learner.step(state, {"policy": [own]}, reference)
    kl = learner.kl(state.params["policy"], reference, own)
    params = multihost_utils.process_allgather(state.params["policy"], tiled=True)
    found = jax.device_get(metrics) | {"kl": jax.device_get(kl)}
    return found | {jax.tree_util.keystr(path): x
                    for path, x in jax.tree_util.tree_leaves_with_path(params)}


if __name__ == "__main__":
    main(*sys.argv[1:])
