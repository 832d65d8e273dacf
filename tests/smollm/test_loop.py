"""The real loop with a real model: what is kept to train on is what the model said."""

import asyncio
import pathlib

import jax
import numpy as np
import pytest

from rime_jax import experiment, parts
from rime_jax.evaluation import heldout
from rime_jax.rollout import collect

pytestmark = pytest.mark.smollm

ROOT = pathlib.Path(__file__).parents[2]
TRIALS, STEPS = 2, 2
LOGPROB_TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def built(directory):
    config = experiment.read(str(ROOT / "experiments/alchemy/models/smollm.py"), [
        f"env.trials={TRIALS}", f"env.max_steps={STEPS}", "rollout.context_tokens=1536",
        "rollout.act_tokens=40", "rollout.write_tokens=40", "rollout.memory_tokens=39",
        "sampler.prefill_chunks=64,512", f"model.path={directory}"])
    # Eight virtual devices would hold eight copies of the model.
    one = jax.local_devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda: one)
        return parts.build(config)


@pytest.fixture(scope="module")
def rollout(built, params):
    """One stream, ACT and WRITE, with the lexical judge."""
    async def play():
        await built.sampler.publish({"policy": params}, 3)
        context = built.context(1.0, judge=built.judge)
        stream = heldout.held_out_streams(built)[0]
        return (await collect.collect(context, [stream], 1, (0,)))[0]

    return asyncio.run(play())


def test_every_task_is_played_written_and_judged(rollout):
    assert rollout.failure is None and len(rollout.tasks) == TRIALS
    for record in rollout.tasks:
        assert 1 <= record.turns <= STEPS and record.verdict is not None
        assert record.act.mask.sum() > 0 and record.write.mask.sum() > 0
    assert rollout.tasks[1].memory_before == rollout.tasks[0].memory_after


def test_behaviour_logprobs_are_those_of_transformers_on_the_ids_that_are_kept(
        rollout, reference_logprobs):
    for record in rollout.tasks:
        for sample in (record.act, record.write):
            (at,) = np.nonzero(sample.mask)
            expected = reference_logprobs(sample.ids)[at - 1, sample.ids[at]]
            assert np.abs(expected - sample.logprobs[at]).max() <= LOGPROB_TOLERANCE


def test_a_conversation_is_well_formed_chat_markup(rollout, tokenizer):
    """Blocks one after another, whether or not the model closed its replies itself."""
    for record in rollout.tasks:
        text = tokenizer.decode(record.write.ids)
        blocks = text.removesuffix("<|im_end|>").split("<|im_end|>\n")
        roles = [block.partition("\n")[0].removeprefix("<|im_start|>") for block in blocks]
        assert roles == ["system", *["user", "assistant"] * (record.turns + 1)]
        assert record.memory_before in blocks[1]
