"""Each benchmark at its smallest size, and what its figures rest on."""

import importlib.util
import sys

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks import grpo_update, mfu, reshard, update_scaling
from benchmarks.grpo_peers import ours, worker
from benchmarks.grpo_peers import task as task_lib
from rime_jax.policy import weights

TINY = grpo_update.SIZES["tiny"]


def test_forward_backward_compares_both_families(monkeypatch, capsys):
    pytest.importorskip("torch", reason="needs torch (extra `parity`)")
    from benchmarks import forward_backward

    monkeypatch.setattr(sys, "argv", ["forward_backward", "--size=tiny", "--repeats=1"])
    forward_backward.main()
    told = capsys.readouterr().out
    assert "| Qwen3 |" in told and "| Qwen3.5 |" in told


def test_speed_of_the_update_is_measured():
    row = update_scaling.speed(32, 2, rows=2, tokens=32, repeats=1)
    assert row.startswith("| 32 × 2 | 0.2 M |")


def test_a_larger_vocabulary_costs_no_memory_per_token():
    small, large, tokens = 8192, 151936, 8192
    grown = (update_scaling.temporary_bytes(large, tokens)
             - update_scaling.temporary_bytes(small, tokens))
    assert grown < (large - small) * tokens * 4 / 4


def test_reshard_is_measured_for_every_layout():
    policy = reshard.make_policy("tiny")
    for sizes, group in reshard.LAYOUTS:
        assert reshard.measure(policy, sizes, group, repeats=1).count("|") == 8


def test_mfu_without_a_known_peak_says_so(capsys):
    policy, device = mfu.make_policy("tiny"), jax.devices()[:1]
    params = mfu.measure_update(policy, device, mfu.SMALL, None, repeats=1)
    mfu.measure_sampler(policy, device, mfu.SMALL, params, repeats=1)
    told = capsys.readouterr().out
    assert "no MFU: peak unknown" in told
    assert "generated tokens/s" in told


@pytest.mark.parametrize(("gib", "name"), [(0, "tiny"), (80, "qwen3-1.7b"), (139, "qwen3-4b")])
def test_mfu_takes_the_largest_model_that_fits(gib, name):
    assert mfu.largest(gib * 2**30) == name


@hypothesis.given(st.integers(1, 9), st.integers(0, 99))
def test_packing_keeps_every_real_token_and_trains_the_completions(sequences, seed):
    task = task_lib.draw(sequences, (8, 24), 50, True, task_lib.Settings(), seed)
    batch = ours.pack(task)
    assert (batch.segments > 0).sum() == task.real_tokens
    assert batch.weights.sum() == (task.completions != task_lib.PAD).sum()
    assert sorted(batch.tokens[batch.segments > 0]) == sorted(
        np.concatenate([task.prompts, task.completions], 1)[
            np.concatenate([task.prompts, task.completions], 1) != task_lib.PAD])


def test_our_loss_is_the_written_one(tmp_path):
    task = grpo_update.prepare(tmp_path, TINY, mixed=True)
    assert ours.make_update(tmp_path)() == pytest.approx(written_loss(tmp_path, task), rel=1e-4)


def written_loss(folder, task):
    policy = weights.make_policy(folder / "policy", "float32", "none")
    logp, reference = (
        grpo_update.completion_logprobs(policy, weights.load(folder / name, policy), task)
        for name in ("policy", "reference"))
    s, advantages = task.settings, task.advantages[:, None]
    ratio = np.exp(logp - task.behaviour)
    gained = np.minimum(ratio * advantages,
                        np.clip(ratio, 1 - s.clip_low, 1 + s.clip_high) * advantages)
    kl = np.exp(reference - logp) - 1 - (reference - logp)
    return (s.kl_coef * kl - gained)[task.completions != task_lib.PAD].mean()


@pytest.mark.parametrize(("name", "package"), [("TRL", "trl"), ("tunix", "tunix")])
def test_losses_agree_over_three_updates_with(name, package, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}, which is no part of any extra")
    grpo_update.prepare(tmp_path, TINY, mixed=True)
    found = grpo_update.compare(tmp_path, {"ours": sys.executable, name: sys.executable}, 1)
    assert set(found) == {"ours", name}


def test_a_program_that_cannot_start_is_named_with_its_last_words(tmp_path):
    with pytest.raises(RuntimeError, match=r"grpo_peers.ours ended with status 1: [\s\S]*task.npz"):
        worker.Worker(sys.executable, "benchmarks.grpo_peers.ours", tmp_path, tmp_path / "log")


def test_table_gives_ratios_of_medians():
    task = task_lib.draw(2, (4, 4), 9, False, task_lib.Settings())
    told = grpo_update.table(task, False, {
        "ours": ("jax 1", np.array([[1.0, 2], [2, 3], [3, 4]])),
        "TRL": ("trl 1", np.array([[5.0, 9], [6, 9], [9, 9]]))})
    assert "| TRL (trl 1) | 5.000 (6.000) | 3 (3) | 9.000 | 3.00 | 3.00 |" in told
