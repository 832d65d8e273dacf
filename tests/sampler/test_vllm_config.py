"""What a configuration with vLLM servers means, and what is wrong with one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import distributed, parts, samplers
from rime_jax.learner import mesh as mesh_lib


def config_of(**values):
    config = config_lib.default()
    config.sampler.kind = "vllm"
    config_lib.override(config, {name.replace("__", "."): v for name, v in values.items()})
    config_lib.validate(config)
    return config


@pytest.mark.parametrize(("urls", "names", "expected"), [
    (["http://a:1", "http://b:2/"], ["policy"], {"policy": ["http://a:1", "http://b:2/"]}),
    (["policy=http://a:1"], ["policy"], {"policy": ["http://a:1"]}),
    (["x=http://a:1", "y=https://b:2", "x=http://c:3"], ["x", "y"],
     {"x": ["http://a:1", "http://c:3"], "y": ["https://b:2"]}),
])
def test_servers_belong_to_parameter_sets(urls, names, expected):
    assert samplers.urls_of(urls, names) == expected


@pytest.mark.parametrize(("urls", "names", "said"), [
    (["a:1"], ["policy"], "http://HOST:PORT"),
    (["other=http://a:1"], ["policy"], "'other=http://a:1'"),
    (["http://a:1"], ["x", "y"], "x=http://HOST:PORT"),
    (["x=http://a:1"], ["x", "y"], "no server for the parameter set 'y'"),
])
def test_a_wrong_address_is_told_with_the_remedy(urls, names, said):
    with pytest.raises(config_lib.ConfigError, match=said):
        samplers.urls_of(urls, names)


def test_two_sets_have_two_routers():
    built = parts.build(config_of(
        roles__write="writer", roles__train="policy,writer",
        sampler__urls="policy=http://a:1,writer=http://b:2"))
    assert sorted(built.sampler._routers) == ["policy", "writer"]


def test_several_processes_need_a_directory_that_all_see():
    several = distributed.Processes(0, 2)
    with pytest.raises(config_lib.ConfigError, match="sampler.exchange_dir"):
        parts.build(config_of(), several)


@pytest.mark.parametrize("fsdp", [1, 4])
def test_the_probe_is_a_full_forward_wherever_the_parameters_lie(fsdp):
    built = parts.build(config_of())
    config = built.config.learner
    config.mesh_fsdp = fsdp
    mesh = mesh_lib.make_mesh(config, jax.devices())
    at = mesh_lib.shardings(mesh, built.policy.logical_axes(), built.policy.shapes())
    probe = built.sampler._probe
    ids = jnp.array([probe.ids], jnp.int32)
    alone = built.initial_params()
    positions = jnp.arange(ids.shape[1])[None]
    hidden = built.policy.forward(alone, ids, positions, jnp.ones_like(ids))
    every = jax.nn.log_softmax(built.policy.logits(alone, hidden[0]))
    expected = [every[i, token] for i, token in enumerate(probe.ids[1:])]
    assert len(expected) >= 5
    found = probe.logprobs(built.initial_params(at))
    np.testing.assert_allclose(found, np.array(expected), atol=1e-5)
