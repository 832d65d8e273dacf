"""Actor and writer of different kinds in one game, each asked for its own role alone."""

import asyncio
import json

import jax
import pytest

from rime_jax import config as config_lib
from rime_jax import evaluate
from rime_jax.evaluation import players
from tests.sampler.test_openai import Service, reply
from tests.scripted import small_config, warm_model


def config(**options):
    return small_config(model__path=warm_model(), eval__streams=2, eval__rollouts=1,
                        eval__bootstrap=100, sampler__slots=8, env__trials=2, **options)


@pytest.mark.parametrize("role", ["writer", "actor"])
def test_a_service_and_a_model_of_ours_play_together(role, tmp_path):
    """The service's text is the memory, or the action, of every task."""
    said = {"writer": "green large", "actor": "0 bank"}[role]

    async def whole():
        async with Service(lambda body, n: reply(said)) as service:
            (tmp_path / "config.json").write_text(config_lib.dump(config()))
            await asyncio.to_thread(evaluate.main, [
                "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "found"),
                *([f"--actor={warm_model()}"] if role == "writer" else []),
                *(["--writer=initial"] if role == "actor" else []),
                f"--{role}={service.url}#org/m"])
            return service

    service = asyncio.run(whole())
    found = json.loads((tmp_path / "found.json").read_text())
    ((name, row),) = found["policies"].items()
    assert "org/m" in name and row["lost"] == 0
    # Four tasks are written; three times as many are played (intact, blanked, true memory).
    assert len(service.bodies) == 4 if role == "writer" else len(service.bodies) >= 12
    assert found["spent"]["sampler/prompt_tokens"] == 10 * len(service.bodies)
    (journal,) = (tmp_path / "played").glob("*.jsonl")
    rows = [json.loads(line) for line in journal.read_bytes().split(b"\n") if line]
    written = [row["memory_after"] for row in rows if row["condition"] == "act_write/with_memory"]
    assert (set(written) == {"green large"}) == (role == "writer")


def test_the_initial_policy_is_spread_over_the_devices_as_in_training(monkeypatch):
    (player,) = players.make(config())
    placed = []

    async def publish(params, version):
        placed.extend(jax.tree.leaves(params))

    monkeypatch.setattr(player.built.sampler, "publish", publish)
    asyncio.run(player.load())
    assert {len(array.sharding.device_set) for array in placed} == {jax.device_count()}


def test_a_model_given_twice_is_one_player(tmp_path):
    (player,) = players.make(config(), actor="initial", writer="initial")
    assert player.writer is None and player.name == "initial"


def test_two_models_do_not_share_vllm_servers():
    made = config(sampler__kind="vllm")
    with pytest.raises(config_lib.ConfigError, match="one model's weights"):
        players.make(made, actor="initial", writer="tiny-bytes-v1")
