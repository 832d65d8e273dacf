"""Where arrays lie: parameters, optimiser state, the initial policy, and what moves in a step."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rime_jax.learner import mesh as mesh_lib
from rime_jax.learner import update as update_lib
from rime_jax.tracking import checkpoint
from tests.learner.updating import PARAMS, POLICY, learner, make_config, pack, sequences

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")
MESH = dict(microbatch_rows=8, row_tokens=32, mesh_data=2, mesh_fsdp=2, mesh_tensor=2)
OTHER = POLICY.init(jax.random.key(1))


def assert_moments_lie_with_their_parameters(state, own):
    adam = next(part for part in jax.tree.leaves(
        state.opt_state["policy"], is_leaf=lambda part: hasattr(part, "mu")) if hasattr(part, "mu"))
    wanted = jax.tree.leaves(own.params_at)
    assert any(not at.is_fully_replicated for at in wanted)
    for tree in (adam.mu, adam.nu, state.params["policy"]):
        assert [x.sharding for x in jax.tree.leaves(tree)] == wanted


def test_the_optimiser_state_follows_the_parameters_also_after_a_restore(tmp_path):
    config = make_config(**MESH)
    own = learner(config, 8)
    state, _ = own.step(own.init({"policy": PARAMS}), {"policy": [pack(config, sequences())]})
    assert_moments_lie_with_their_parameters(state, own)
    checkpoints = checkpoint.Checkpoints(tmp_path, 1)
    checkpoints.save(1, state, {})
    checkpoints.close()
    checkpoints = checkpoint.Checkpoints(tmp_path, 1, read_only=True)
    restored, _ = checkpoints.restore(1, own.init({"policy": PARAMS}))
    checkpoints.close()
    assert_moments_lie_with_their_parameters(restored, own)


def test_an_update_consumes_the_buffers_of_the_state_and_of_nothing_else():
    config = make_config(**MESH, kl_coef=1.0)
    own = learner(config, 8)
    state, reference = own.init({"policy": PARAMS}), own.reference(OTHER)
    own.step(state, {"policy": [pack(config, sequences())]}, reference)
    assert all(x.is_deleted() for x in jax.tree.leaves(state))
    assert not any(x.is_deleted() for x in jax.tree.leaves((reference, OTHER, PARAMS)))


@pytest.mark.parametrize("part", ["updates", "params", "reference"])
def test_what_would_be_sent_to_the_devices_unseen_is_refused(part, monkeypatch):
    config = make_config(**MESH, kl_coef=1.0)
    own = learner(config, 8)
    state, reference = own.init({"policy": PARAMS}), own.reference(OTHER)
    batches = {"policy": [pack(config, sequences())]}
    if part == "reference":
        host = jax.tree.map(np.asarray, reference)  # Fetching it later would be refused as well.
        monkeypatch.setattr(own, "_on_devices", lambda _: host)
    else:
        state = state.replace(**{part: jax.tree.map(np.asarray, getattr(state, part))})
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        own.step(state, batches, reference)


@functools.cache
def updated(memory, where):
    """The initial policy's copy, and what two updates make of it, with bfloat16 activations."""
    config = make_config(microbatch_rows=8, row_tokens=32, mesh_data=1, mesh_fsdp=8, kl_coef=0.5,
                         reference_memory=memory, reference_pass=where)
    policy = dataclasses.replace(POLICY, dtype=jnp.bfloat16)
    own = update_lib.Learner(policy, config, mesh_lib.make_mesh(config.learner, jax.devices()))
    state, reference = own.init({"policy": PARAMS}), own.reference(OTHER)
    batch = pack(config, sequences())
    for _ in range(2):
        state, metrics = own.step(state, {"policy": [batch]}, reference)
    kl = own.kl(state.params["policy"], reference, batch)
    return own, reference, jax.device_get((state.params, metrics, kl))


@pytest.mark.parametrize("memory, where", [
    ("device", "update"), ("host", "separate"), ("host", "update")])
def test_where_the_reference_lies_and_which_program_reads_it_changes_nothing(memory, where):
    jax.tree.map(np.testing.assert_array_equal, updated("device", "separate")[2],
                 updated(memory, where)[2])


@pytest.mark.parametrize("memory, kind", [("device", "device"), ("host", "pinned_host")])
def test_the_reference_is_narrow_and_divided_like_the_parameters(memory, kind):
    own, reference, _ = updated(memory, "separate")
    assert reference["layers"]["q"].dtype == jnp.bfloat16
    assert reference["final_norm"].dtype == jnp.float32
    for x, at in zip(jax.tree.leaves(reference), jax.tree.leaves(own.params_at), strict=True):
        assert x.sharding == at.with_memory_kind(kind)


def test_the_kl_of_a_policy_to_itself_is_zero_and_to_another_is_not():
    config = make_config(**MESH)
    own = learner(config, 8)
    batch = pack(config, sequences())
    params = own.place(PARAMS)
    np.testing.assert_allclose(own.kl(params, own.reference(PARAMS), batch), 0, atol=1e-6)
    assert own.kl(params, own.reference(OTHER), batch) > 0.1
