"""Three updates give the same numbers however the work is cut, for both families."""

import jax
import numpy as np
import pytest

from rime_jax.learner import batch as batch_lib
from tests.learner.updating import FAMILIES, assert_same, make_config, pack, run, sequences

both_families = pytest.mark.parametrize("family", FAMILIES)
three = {"steps": 3}


def cut(**changes):
    return make_config(lr=1e-3, row_tokens=32, **changes)


@pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")
@pytest.mark.parametrize("mesh, family", [
    ((8, 1, 1), "qwen3"), ((2, 2, 2), "qwen3"), ((1, 8, 1), "qwen3"), ((1, 1, 8), "qwen3"),
    ((2, 2, 2), "qwen3_5")])
def test_eight_devices_equal_one(mesh, family):
    batch = pack(cut(microbatch_rows=8), sequences())
    many = cut(microbatch_rows=8, **dict(zip(("mesh_data", "mesh_fsdp", "mesh_tensor"), mesh,
                                             strict=True)))
    assert_same(run(cut(microbatch_rows=8), [batch], family=family, **three),
                run(many, [batch], devices=8, family=family, **three))


@both_families
def test_one_micro_batch_equals_four(family):
    whole, parts = (cut(microbatch_rows=r) for r in (24, 4))
    batches = [pack(c, sequences()) for c in (whole, parts)]
    assert [int(b.n_micro) for b in batches] == [1, 4]
    assert_same(run(whole, batches[:1], family=family, **three),
                run(parts, batches[1:], family=family, **three))


@both_families
def test_packed_equals_unpacked(family):
    packed = make_config(lr=1e-3)
    items = sequences()
    batch = pack(packed, items)
    assert int(batch.segments.max()) >= 3
    rows = [batch_lib.pack([s], 32, 1) for s in items]
    alone = jax.tree.map(
        lambda *x: np.concatenate([a[:1] for a in x]).reshape(-1, 4, 32) if x[0].ndim == 3
        else np.int32(len(items) // 4), *rows)
    assert_same(run(packed, [batch], family=family, **three),
                run(cut(), [alone], family=family, **three))
