"""What the page on the writer's reward rests on: dumps read back, variances, pairs of runs."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from benchmarks import credit, credit_runs
from rime_jax import config as config_lib
from rime_jax import domains, experiment, streams
from rime_jax.tracking.run_dir import RunDir

ROOT = pathlib.Path(__file__).parents[1]


def of_performance(performance, **changes):
    filled = np.zeros_like(performance)
    fields = {f.name: filled for f in dataclasses.fields(credit.Played)}
    return credit.Played(**{**fields, "performance": performance, **changes})


def write_dump(path, steps=(1, 2)):
    """A run whose writers know nothing (sibling 0), everything (1), or one wrong fact (2)."""
    config = experiment.read(f"{ROOT}/experiments/alchemy/rime.py:tiny")
    config.rollout.streams_per_step, config.rollout.group_size = 2, 3
    run, domain = RunDir(path), domains.make(config)
    run.create_or_resume(config, resume=True)
    source = streams.StreamSource(domain.make_stream("train"), config.seed)
    for step in steps:
        rows = []
        for g, stream in enumerate(source.take(2)):
            for t, task in enumerate(stream.tasks):
                truth = domain.true_memory(task)
                facts = credit._facts(domain, truth)
                other = next(word for word in ("small", "large") if word != facts["red"])
                # The environment shows what red does, and the other siblings nothing.
                shown = [["environment", f"red {facts['red']} 0 small blue round"]]
                rows += [
                    {"group": g, "sibling": i, "position": t + 1, "reward": 1.0 * i * t,
                     "performance": i * t / 10, "turns": 3, "memory_before": "",
                     "memory_after": memory, "transcript": shown if i == 0 else []}
                    for i, memory in enumerate(["", truth, f"red {other}"])]
        rows.append({"group": 0, "sibling": 0, "position": 6, "status": "env_crash"})
        run.write_samples(step, rows)
    return path


def test_dumps_are_measured_by_the_truth_of_the_streams_of_their_step(tmp_path):
    found = credit.read([write_dump(tmp_path / "run")])
    (name, iterations), = found.items()
    assert name == "rime_tiny, first half" and len(iterations) == 2
    for p in iterations:
        np.testing.assert_array_equal(p.held, np.broadcast_to([[0], [7], [0]], (2, 3, 6)))
        np.testing.assert_array_equal(p.goal_held, p.held == 7)
        np.testing.assert_array_equal(p.known, np.broadcast_to([[1], [0], [0]], (2, 3, 6)))
        assert not p.goal_known.any() and not p.items.any()


def test_all_tables_are_printed(tmp_path, capsys):
    credit.main([str(write_dump(tmp_path / "run"))])
    told = capsys.readouterr().out
    assert told.count("| experiment |") == 5 and "| rime_tiny, first half | fitted |" in told


def test_runs_without_a_truth_or_without_dumps_are_refused(tmp_path):
    write_dump(tmp_path / "bare", steps=())
    with pytest.raises(config_lib.ConfigError, match="track.samples_every"):
        credit.read([tmp_path / "bare"])
    if not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed: a run on repositories cannot be read here")
    config = experiment.read(f"{ROOT}/experiments/codebase/rime.py:tiny")
    RunDir(tmp_path / "code").create_or_resume(config, resume=True)
    with pytest.raises(config_lib.ConfigError, match="cannot be told"):
        credit.read([tmp_path / "code"])


def test_luck_is_the_spread_that_a_memory_leaves():
    rng = np.random.default_rng(0)
    noise = 0.1 * rng.normal(size=(100, 16, 2))
    worth = rng.integers(0, 3, size=(100, 16))
    performance = np.stack([np.zeros((100, 16)), worth], -1) + noise
    memory = np.stack([worth.astype(str)] * 2, -1).astype(object)
    assert credit.luck([of_performance(performance, memory=memory)]) == pytest.approx(
        0.01, rel=0.05)
    assert credit.variance(performance[..., 1:]) == pytest.approx(2 / 3 + 0.01, rel=0.05)


def test_the_coefficient_of_least_variance_is_found():
    rng = np.random.default_rng(0)
    first = rng.normal(size=(400, 8))
    performance = np.stack([first, 0.4 * first + 0.1 * rng.normal(size=first.shape)], -1)
    assert credit._coefficients([of_performance(performance)]) == [pytest.approx(0.4, abs=0.01)]


def test_what_is_foretold_is_learnt_from_other_streams():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 8, 3))
    slope = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(credit.left_over(slope * x, [x]), 0, atol=1e-9)
    unrelated = credit.left_over(rng.normal(size=x.shape), [x])
    assert credit.variance(unrelated) == pytest.approx(1, rel=0.1)


def write_run(path, performance, curve):
    path.mkdir(parents=True)
    values = {"performance": performance, "gain": performance}
    (path / "eval").mkdir()
    (path / "eval/final.json").write_text(json.dumps({
        "protocol": "streams", "setting": "a game", "trials": 6, "policies": {"last": {}},
        "units": {"names": ["a", "b"], "clusters": ["a", "b"], "values": {"last": values}}}))
    (path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": i, "performance/mean": v}) + "\n"
                for i, v in enumerate(curve)))


def test_runs_are_paired_by_warm_start_and_seed(tmp_path):
    for start, seed, more in (("w0", 0, 0.1), ("w0", 1, 0.2), ("w1", 0, 0.3)):
        write_run(tmp_path / start / f"a_seed{seed}", [0.0, 0.2], [0.0, 0.2])
        write_run(tmp_path / start / f"b_seed{seed}", [more, 0.2 + more], [0.1, 0.2, 9.0])
    write_run(tmp_path / "w1" / "a_seed1", [0.0, 0.0], [0.0])
    paired = credit_runs.pairs("a", "b", [tmp_path / "w0", tmp_path / "w1"])
    assert len(paired) == 3
    found = [credit_runs.differences(*pair) for pair in paired]
    assert [d["performance"] for d in found] == pytest.approx([0.1, 0.2, 0.3])
    # Of the iterations that both have.
    assert [d["training"] for d in found] == pytest.approx([0.05] * 3)
    told = credit_runs.table(dict(zip("xyz", found, strict=True)))
    # Student's t by hand: .2 ± 4.303 × .1 / √3.
    assert "| mean of 3 | +0.200 [-0.048, +0.448]" in told
    with pytest.raises(config_lib.ConfigError, match="share a seed"):
        credit_runs.pairs("a", "c", [tmp_path / "w0"])
