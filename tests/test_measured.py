"""The metrics of an iteration do not depend on how its groups were divided; MFU by hand."""

import pickle
import types

import numpy as np
import pytest

from rime_jax import config as config_lib
from rime_jax import measured, mfu, training_data
from rime_jax.aot import hardware
from rime_jax.learner import batch as batch_lib
from rime_jax.learner import credit as credit_lib
from rime_jax.policy import qwen3, weights
from rime_jax.tracking import bad_batches, texts
from tests import scripted

SIBLINGS = 3


def reply(call):
    """Siblings differ in their actions and memories, and one memory is malformed."""
    if call.role == "write":
        return "green makes large" if call.sibling else "green green"
    return "bank 1" if (call.group + call.sibling + call.position) % 2 else "green on 1"


@pytest.fixture(scope="module")
def played():
    config = scripted.small_config(rollout__group_size=SIBLINGS)
    rollouts, _ = scripted.play(
        reply, config=config, streams=scripted.streams_of(config, 5), siblings=SIBLINGS)
    built = types.SimpleNamespace(config=config, domain=scripted.domains.make(config))
    return built, rollouts


def share(rollouts, seconds=1.0):
    return measured.Share(
        rollouts, {"time/rollout_s": seconds, "time/update_s": seconds}, {"sampler/retries": 1.0},
        {"generated": 10.0, "trained": 6.0, "flops": 1.0, "judge/asked": 2.0})


def test_metrics_do_not_depend_on_who_played_what(played):
    built, rollouts = played
    whole = measured.iteration(built, 1, [share(rollouts)])
    parts = [[r for r in rollouts if r.group % 2 == i] for i in range(2)]
    # What is sent is small and enough.
    sent = [training_data.light(part, transcripts=True) for part in parts]
    assert len(pickle.dumps(sent)) < len(pickle.dumps(rollouts))
    merged = measured.iteration(built, 1, [share(part) for part in sent])
    clock = ("time/", "judge/", "sampler/")
    assert {k: v for k, v in merged.metrics.items() if not k.startswith(clock)} == {
        k: v for k, v in whole.metrics.items() if not k.startswith(clock)}
    assert len(whole.metrics) > 50
    rows = [list(texts.sample_rows(i.rollouts, i.credit)) for i in (merged, whole)]
    assert repr(rows[0]) == repr(rows[1])


def test_rates_are_of_all_processes_and_the_slowest_clock(played):
    built, rollouts = played
    found = measured.iteration(built, 1, [share(rollouts, 2.0), share([], 4.0)]).metrics
    assert found["time/rollout_s"] == 4 and found["time/generated_tokens_per_s"] == 5
    assert found["time/trained_tokens_per_s"] == 3 and found["judge/asked"] == 4
    assert found["sampler/retries"] == 1
    assert "time/mfu" not in found  # nobody knows the peak of a CPU


def test_a_process_without_groups_has_nothing_to_train():
    config = config_lib.default()
    credit = credit_lib.credit(training_data.rewards_of([], SIBLINGS), config.reward)
    batches = batch_lib.make_batches(
        [], credit, config.roles, config.learner, (0,), 2,
        lambda sizes: sizes + 3)
    assert [int(b.n_micro) for b in batches["policy"]] == [3, 3]
    assert not any(b.segments.any() or b.weights.any() for b in batches["policy"])


# ---------------------------------------------------------------------- model-FLOPs utilisation


def batch_of(lengths, row_tokens=64):
    """One batch of sequences of these lengths."""
    def zeros(n, dtype):
        return np.zeros(n, dtype)

    return batch_lib.pack([
        batch_lib.Trainable((i, 0, 0), zeros(n, np.int32), zeros(n, np.int8),
                            zeros(n, np.float32), zeros(n, np.float32), zeros(n, np.float32))
        for i, n in enumerate(lengths)], row_tokens, 2)


@pytest.mark.parametrize(("values", "passes"), [
    ({}, 3), ({"kl_coef": 0.1}, 4), ({"kl_coef": 0.1, "old_logprobs": "learner"}, 5)])
def test_flops_of_an_update_are_those_of_its_matrices_and_no_padding(values, passes):
    directory = weights.resolve("tiny-alchemy-v1")
    sizes = weights.make_policy(directory, "float32", "none").config
    learner = config_lib.default().learner
    learner.update(values)
    lengths = [5, 40, 17]
    tokens, pairs = sum(lengths), sum(n * (n + 1) // 2 for n in lengths)
    shapes = qwen3.Qwen3(sizes).shapes()
    matrices = sum(x.size for name, x in shapes["layers"].items() if x.ndim == 3)
    head = sizes.hidden_size * sizes.vocab_size
    attention = 4 * sizes.num_hidden_layers * sizes.num_attention_heads * sizes.head_dim * pairs
    want = passes * (2 * tokens * (matrices + head) + attention)
    found = mfu.update_flops(sizes, {"a": [batch_of(lengths)], "b": []}, learner)
    assert found == pytest.approx(want, rel=1e-6)
    assert mfu.utilisation(want, 2.0, 4, want / 8) == 1


@pytest.mark.parametrize(("kind", "peak"), [
    ("TPU v5 lite", 197e12), ("TPU v5p", 459e12), ("TPU7x", 2307e12 / 2),
    ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA H200", 989e12),
    ("NVIDIA A100-SXM4-80GB", 312e12), ("cpu", None), ("TPU v99", None)])
def test_peaks_are_known_by_the_names_of_the_devices(kind, peak):
    assert hardware.peak_flops(kind) == peak


# ---------------------------------------------------------------------- batches to look at


def test_only_the_newest_bad_batches_are_kept(tmp_path):
    batch = batch_of([5, 40])
    for step in range(1, 8):
        bad_batches.save(tmp_path, step, "policy", [batch, batch], 0)
    assert bad_batches.steps(tmp_path) == [4, 5, 6, 7]
    assert len(list(tmp_path.glob("step_000007/policy.*.process_0.npz"))) == 2
