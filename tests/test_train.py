"""The training program as its user runs it: what it writes, and that a stopped run continues."""

import asyncio
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

from rime_jax import config as config_lib
from rime_jax import errors, experiment, parts, starting_point, train
from rime_jax.evaluation import heldout
from rime_jax.policy import qwen3, weights, words
from rime_jax.tracking import bad_batches, checkpoint, metrics, run_dir, texts
from tests import scripted

ROOT = pathlib.Path(__file__).parents[1]
STEPS = 6


@pytest.fixture(scope="module")
def model():
    return scripted.warm_model()


def tiny(model, directory, **values):
    """A whole run of seconds: 24 conversations an iteration, a model of one layer."""
    return scripted.small_config(**{
        "model__path": model, "run_dir": str(directory), "steps": STEPS,
        "learner__row_tokens": 128, "learner__microbatch_rows": 8,
        "learner__lr": 1e-3, "learner__warmup_updates": 2,
        "sampler__slots": 24, "sampler__prefill_chunks": (16,),
        "eval__every": 3, "eval__streams": 4, "eval__rollouts": 1, "eval__bootstrap": 100,
        "track__checkpoint_every": 1, "track__samples_every": 2, "track__text_every": 2,
        "track__kl_every": 2, **values})


def run(config):
    """Trains in this process; returns the run directory."""
    directory = run_dir.RunDir(config.run_dir)
    assert train.train(config, directory)
    return directory


def command(config, tmp_path):
    file = tmp_path / f"{pathlib.Path(config.run_dir).name}.json"
    file.write_text(config_lib.dump(config))
    return [sys.executable, "-m", "rime_jax.train", f"--config={file}"]


def start(config, tmp_path):
    return subprocess.Popen(command(config, tmp_path), cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for_step(directory, step, process):
    deadline = time.monotonic() + 300
    while not any(line["step"] == step for line in metrics.read(directory / "metrics.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"step {step} did not come"
        time.sleep(0.01)


def numbers(directory):
    """All metrics of a run but the clock's, as they stand in the file."""
    return [{k: v for k, v in line.items() if not k.startswith("time/")}
            for line in metrics.read(pathlib.Path(directory) / "metrics.jsonl")]


@pytest.fixture(scope="module")
def unbroken(model, tmp_path_factory):
    config = tiny(model, tmp_path_factory.mktemp("runs") / "unbroken")
    return run(config), config


# ---------------------------------------------------------------------- what a run leaves behind

NAMES = """reward/mean performance/mean performance/improvement exploration/score
exploration/discoveries exploration/corrections exploration/leads exploration/non_redundant
reward/at_1 reward/at_3 performance/at_1 performance/at_3 exploration/at_1 exploration/at_3
memory/well_formed memory/tokens memory/items memory/retention_exact memory/retention_fuzzy
memory/correct_facts memory/wrong_facts format_errors/per_turn act/turns act/tokens
failures/env_crash failures/env_timeout failures/sampler_error failures/judge_unavailable
credit/zero_variance_reward credit/zero_variance_exploration credit/zero_variance_writer
credit/act_samples credit/write_samples learner/oldest_token_lag
time/rollout_s time/judge_s time/update_s time/generated_tokens_per_s time/trained_tokens_per_s
""".split()
LEARNER_NAMES = "entropy loss grad_norm lr skipped logprob_gap logprob_gap_max".split()
EVALUATION_NAMES = "eval/performance eval/stateless eval/gain eval/improvement".split()


def test_every_iteration_has_its_line_with_the_promised_curves(unbroken):
    lines = metrics.read(unbroken[0].metrics)
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    seen = set().union(*lines[1:])
    learner = {f"learner/policy/{name}" for name in (*LEARNER_NAMES, "kl_to_initial")}
    assert (set(NAMES) | learner) - seen == set()
    assert any("clip" in name for name in seen)
    for line in lines[1:]:
        assert all(value is None or isinstance(value, (int, float)) for value in line.values())
        assert set(EVALUATION_NAMES) <= set(line) or line["step"] != 3
    assert set(EVALUATION_NAMES) <= set(lines[0])


def test_the_sampler_and_the_learner_agree_on_log_probabilities(unbroken):
    for line in metrics.read(unbroken[0].metrics)[1:]:
        assert line["credit/act_samples"] > 0
        assert line["learner/policy/logprob_gap_max"] < 1e-3
        assert line["learner/policy/skipped"] == 0 and line["learner/oldest_token_lag"] == 0


def test_tensorboard_shows_the_same_scalars(unbroken):
    events = event_accumulator.EventAccumulator(
        str(unbroken[0].tb), size_guidance={event_accumulator.SCALARS: 0}).Reload()
    shown = {(tag, e.step): e.value
             for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
    for line in metrics.read(unbroken[0].metrics):
        for name, value in line.items():
            if name != "step" and value is not None:
                assert shown[name, line["step"]] == np.float32(value), name
    assert {tag.partition("/")[0] for tag in events.Tags()["tensors"]} >= {"rollout", "memories"}
    counted = [np.asarray(tensor_util.make_ndarray(event.tensor_proto))
               for event in events.Tensors("learner/policy/ratios")]
    # As many tokens as were trained, all of them near a ratio of 1: one update a batch.
    assert all(counts[:, 2].sum() > 100 for counts in counted)
    assert [event.step for event in events.Tensors("learner/policy/ratios")] == [1, 2, 4, 6]
    assert {event.step for event in events.Tensors("credit/write_advantages")} == {1, 2, 4, 6}


def test_every_chart_of_the_layout_has_curves_of_a_run_or_of_the_other_domain(unbroken):
    names = {name for line in metrics.read(unbroken[0].metrics) for name in line}
    for charts in texts.LAYOUT.values():
        for title, patterns in charts.items():
            shown = [n for n in names for pattern in patterns if re.fullmatch(pattern, n)]
            assert shown or all(p.startswith("env/") for p in patterns), title


def test_samples_can_be_read_and_are_whole(unbroken):
    directory, config = unbroken
    assert directory.sample_steps() == [1, 2, 4, 6]
    rows = directory.read_samples(2)
    assert len(rows) == 2 * 4 * config.env.trials
    assert {(r["group"], r["sibling"], r["position"]) for r in rows} == {
        (g, s, t) for g in range(2) for s in range(4) for t in (1, 2, 3)}
    for row in rows:
        assert row["memory_before"] == "" or row["position"] > 1
        assert [speaker for speaker, _ in row["transcript"]][-1] == "writer" and row["version"] == 1


def test_the_trained_model_can_start_another_run(unbroken, tmp_path):
    directory, config = unbroken
    trained = str(directory.path / "model" / "policy")
    built = parts.build(tiny(trained, tmp_path / "next"))
    _, params = starting_point.newest(parts.build(config), directory.path)
    jax.tree.map(np.testing.assert_array_equal, built.initial_params(),
                 jax.device_get(params["policy"]))
    before = parts.build(config).initial_params()
    assert not np.array_equal(before["embed"], built.initial_params()["embed"])


def test_the_last_table_compares_with_the_initial_policy(unbroken):
    directory, _ = unbroken
    found = json.loads((directory.eval / "final.json").read_text())
    assert set(found["policies"]) == {"initial", f"step {STEPS}"}
    assert (directory.eval / "final.md").read_text().startswith("Symbolic Alchemy, eased variant")


def test_the_saved_configuration_starts_the_run_again(unbroken):
    directory, config = unbroken
    saved = experiment.read(str(directory.config))
    assert saved == config
    before = directory.metrics.read_bytes()
    assert train.train(saved, directory)  # finished: nothing but the table is made again
    assert directory.metrics.read_bytes() == before


# ---------------------------------------------------------------------- stopping and continuing


def test_a_killed_run_continues_to_the_same_numbers(unbroken, model, tmp_path):
    config = tiny(model, tmp_path / "killed")
    process = start(config, tmp_path)
    wait_for_step(tmp_path / "killed", 3, process)
    with pytest.raises(errors.TransientError, match="another process trains in .*run_dir"):
        train.train(config, run_dir.RunDir(config.run_dir))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert max(line["step"] for line in numbers(tmp_path / "killed")) < STEPS
    again = subprocess.run(command(config, tmp_path), cwd=ROOT, text=True, capture_output=True)
    assert again.returncode == 0, again.stderr
    assert "Continuing" in again.stdout
    assert numbers(tmp_path / "killed") == numbers(unbroken[0].path)


def test_sigterm_saves_and_the_run_continues_to_the_same_numbers(unbroken, model, tmp_path):
    config = tiny(model, tmp_path / "stopped", track__checkpoint_every=100)
    process = start(config, tmp_path)
    wait_for_step(tmp_path / "stopped", 2, process)
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate()
    assert process.returncode == errors.STOPPED == 75 and "Traceback" not in error, error
    assert "same command continues" in out
    directory = run_dir.RunDir(config.run_dir)
    saved, _ = starting_point.newest(parts.build(config), directory.path)
    assert 2 <= saved < STEPS
    run(config)
    assert numbers(directory.path) == numbers(unbroken[0].path)


def test_a_signal_during_an_evaluation_loses_no_iteration(unbroken, model, tmp_path, monkeypatch):
    config = tiny(model, tmp_path / "evaluating", steps=4)
    directory = run_dir.RunDir(config.run_dir)
    play = heldout._play_own

    async def interrupted(game, conditions):
        if game.built.sampler.version == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        return await play(game, conditions)

    monkeypatch.setattr(heldout, "_play_own", interrupted)
    assert not train.train(config, directory)
    monkeypatch.undo()
    run(config)
    own, other = numbers(directory.path), numbers(unbroken[0].path)
    assert own == other[:5]
    assert directory.sample_steps() == [1, 2, 4]


def test_a_run_killed_before_its_first_checkpoint_starts_anew(unbroken, model, tmp_path):
    """What is left of it: its configuration and lines of metrics that no checkpoint stands for."""
    config = tiny(model, tmp_path / "early", steps=1)
    directory = run_dir.RunDir(config.run_dir)
    directory.create_or_resume(config, True)
    lines = unbroken[0].metrics.read_bytes().split(b"\n")
    directory.metrics.write_bytes(b"\n".join(lines[:3]) + b"\n")
    run(config)
    own, other = numbers(directory.path), numbers(unbroken[0].path)
    assert own == other[:2]


def test_a_refused_start_leaves_the_files_of_the_running_one_alone(model, tmp_path):
    config = tiny(model, tmp_path / "held")
    directory = run_dir.RunDir(config.run_dir)
    directory.create_or_resume(config, True)
    before = directory.config.read_bytes()
    with directory.lock():
        config.steps = 77
        with pytest.raises(errors.TransientError, match="another process trains"):
            train.train(config, directory)
    assert directory.config.read_bytes() == before


@pytest.mark.parametrize("damage", ["truncate", "state"])
def test_a_damaged_checkpoint_is_named_with_the_one_before(model, tmp_path, damage):
    config = tiny(model, tmp_path / "damaged", steps=2, eval__every=0)
    run(config)
    newest = tmp_path / "damaged" / "checkpoints" / "2"
    files = {"truncate": newest / "arrays" / "_METADATA", "state": newest / "state" / "metadata"}
    files[damage].write_text("{")
    config.steps = 3
    with pytest.raises(checkpoint.CheckpointError, match="checkpoints/2 is damaged.*step 1"):
        run(config)


def test_metrics_are_not_cut_back_because_checkpoints_were_removed(model, tmp_path):
    config = tiny(model, tmp_path / "removed", steps=3, eval__every=0)
    directory = run(config)
    before = directory.metrics.read_bytes()
    shutil.rmtree(directory.checkpoints)
    with pytest.raises(config_lib.ConfigError, match="step 3.*checkpoints were removed"):
        run(config)
    assert directory.metrics.read_bytes() == before


def test_a_run_whose_updates_are_not_finite_stops_and_says_so(model, tmp_path):
    config = tiny(model, tmp_path / "endless", learner__lr=3e38, learner__warmup_updates=0,
                  eval__every=0)
    config.learner.grad_clip = 1e30
    with pytest.raises(errors.TransientError, match="3 iterations in a row.*learner.lr"):
        run(config)
    lines = metrics.read(tmp_path / "endless" / "metrics.jsonl")
    assert lines[-1]["learner/policy/not_finite"] == 1
    # The batches of such updates are kept, each with its place.
    kept = run_dir.RunDir(config.run_dir).bad_batches
    last = bad_batches.steps(kept)[-1]
    assert last == lines[-1]["step"]
    file = np.load(sorted(kept.glob(f"step_{last:06d}/*"))[0])
    assert (file["step"], file["set"], file["minibatch"], file["process"]) == (last, "policy", 0, 0)
    assert file["weights"].any() and file["tokens"].shape == file["weights"].shape
    assert len(file["tokens"]) == file["n_micro"]


def test_a_run_is_not_continued_where_that_is_not_wanted(unbroken):
    directory, config = unbroken
    fresh = experiment.read(str(directory.config), ["resume=false"])
    with pytest.raises(config_lib.ConfigError, match="already holds a run.*run_dir"):
        train.train(fresh, directory)


def test_a_run_can_be_made_longer(model, tmp_path, unbroken):
    config = tiny(model, tmp_path / "longer", steps=2)
    run(config)
    run(tiny(model, tmp_path / "longer", steps=3))
    # Evaluations during training leave the last step out, which has the table.
    own, other = numbers(tmp_path / "longer"), numbers(unbroken[0].path)
    assert own[:3] == other[:3]
    assert own[3].items() <= other[3].items() and own[3]["step"] == 3


# ---------------------------------------------------------------------- wrong configurations


@pytest.mark.parametrize(("assignment", "told"), [
    ("learner.learning_rate=1", r"unknown option 'learner.learning_rate'.*learner\."),
    ("learner.lr=fast", r"learner\.lr must be a float"),
    ("steps=2.5", r"steps must be an int"),
    ("rollout.group_size=1", r"rollout\.group_size = 1 is below 2.*compared"),
    ("reward.horizon=0", r"reward\.horizon = 0 is below 1"),
    ("roles.train=writer", r"roles\.train holds 'writer'.*roles\.act"),
    ("sampler.slots=9", r"sampler\.slots = 9.*multiple"),
    ("learner.microbatch_rows=9", r"learner\.microbatch_rows = 9.*multiple"),
    ("learner.mesh_tensor=3", r"learner\.mesh"),
    ("env.min_oracle=45", r"min_oracle"),
    ("env.edges=12,12", r"edges"),
    ("env.hold_out=graphs", r"1 graphs with 12 edges.*leave 12 out of edges"),
    ("model.path=nowhere", r"model\.path = 'nowhere'.*shipped"),
    ("rollout.context_tokens=200", r"learner\.row_tokens = 128.*raise"),
    ("steps", r"--set steps: write OPTION=VALUE"),
])
def test_a_wrong_configuration_stops_with_field_and_remedy(
    model, tmp_path, capsys, assignment, told
):
    file = tmp_path / "config.json"
    file.write_text(config_lib.dump(tiny(model, tmp_path / "run")))
    with pytest.raises(SystemExit) as stop:
        train.main([f"--config={file}", "--set", assignment])
    assert stop.value.code == errors.REFUSED
    assert re.search(f"^error: (?s:.*){told}", capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_an_error_of_the_user_shows_no_traceback(model, tmp_path):
    config = tiny(model, tmp_path / "run")
    done = subprocess.run([*command(config, tmp_path), "--set", "rollout.group_size=1"], cwd=ROOT,
                          text=True, capture_output=True)
    assert done.returncode == errors.REFUSED and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: rollout.group_size = 1")


def test_a_checkpoint_of_another_model_is_refused(model, tmp_path):
    path = shutil.copytree(model, tmp_path / "model")
    config = tiny(str(path), tmp_path / "run", steps=1, eval__every=0)
    run(config)
    sizes = weights.make_policy(path, "float32", "none").config
    other = qwen3.Qwen3(dataclasses.replace(sizes, intermediate_size=48))
    weights.save(path, other, other.init(jax.random.key(0)), scripted.TOKENIZER)
    with pytest.raises(SystemExit) as stop:
        train.main([f"--config={tmp_path}/run/config.json", "--set", "steps=2"])
    assert re.search("error: checkpoint .* another model.*layers.*run_dir", str(stop.value))


def test_a_model_without_the_words_of_the_compact_form_is_refused(model, tmp_path):
    path = shutil.copytree(model, tmp_path / "model")
    words.word_tokenizer(("green", "large")).save_pretrained(path)
    with pytest.raises(config_lib.ConfigError, match="model.path.*env.form = 'compact'.*'full'"):
        train.train(tiny(str(path), tmp_path / "run"), run_dir.RunDir(tmp_path / "run"))


# ---------------------------------------------------------------------- parameter sets

MATRIX = {
    "decoupled": ({"roles__train": ("a", "b"), "reward__writer": "format"}, {"a", "b"}),
    "frozen writer": ({"roles__train": ("a",), "reward__writer": "format"}, {"a"}),
    "frozen actor": ({"roles__train": ("b",), "reward__writer": "format"}, {"b"}),
    "writer without a reward": ({"roles__train": ("a", "b"), "reward__writer": "none"}, {"a"}),
}


@pytest.mark.parametrize("name", MATRIX)
def test_exactly_the_sets_that_train_and_earn_something_move(model, tmp_path, name):
    values, moving = MATRIX[name]
    config = tiny(model, tmp_path / "run", steps=2, eval__every=0, eval__streams=1,
                  roles__act="a", roles__write="b", **values)
    directory = run(config)
    built = parts.build(config)
    _, params = starting_point.newest(built, directory.path)
    assert set(params) == {"a", "b"}
    for key, tree in params.items():
        same = [np.array_equal(x, y) for x, y in
                zip(jax.tree.leaves(tree), jax.tree.leaves(built.initial_params()), strict=True)]
        assert not any(same) if key in moving else all(same)
        assert (directory.path / "model" / key / "config.json").exists()
    for line in metrics.read(directory.metrics):
        learners = {n.split("/")[1] for n, v in line.items() if n.startswith("learner/") and "/" in
                    n.removeprefix("learner/")}
        assert learners == moving
        # Each set is trained by its own role alone.
        assert line.get("learner/a/entropy_write") is None
        assert line.get("learner/b/entropy_act") is None


def test_a_shared_writer_without_a_reward_has_no_trained_token(model, tmp_path):
    config = tiny(model, tmp_path / "run", steps=1, eval__every=0, eval__streams=1,
                  reward__writer="none")
    (line,) = metrics.read(run(config).metrics)
    assert line["credit/write_samples"] == 0 and line["learner/policy/entropy_write"] is None
    assert line["credit/act_samples"] > 0 and line["learner/policy/entropy_act"] > 0
