"""The program: who can be evaluated, where results go, and what is refused."""

import json
import os
import signal

import pytest

from rime_jax import errors, evaluate, train
from rime_jax.evaluation import protocols
from rime_jax.tracking import run_dir
from tests.scripted import small_config, warm_model

SIZES = dict(eval__streams=2, eval__rollouts=1, eval__bootstrap=100, sampler__slots=8,
             learner__microbatch_rows=8)


def config_file(directory, **options):
    config = small_config(model__path=warm_model(), **SIZES, **options)
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config.to_dict()))
    return str(directory / "config.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one step."""
    directory = run_dir.RunDir(tmp_path_factory.mktemp("runs") / "mine")
    config = small_config(
        model__path=warm_model(), **SIZES, steps=1, run_dir=str(directory.path), eval__every=0,
        rollout__group_size=2, rollout__streams_per_step=1)
    assert train.train(config, directory)
    return directory.path


def results(path):
    return json.loads(path.read_text())


def test_evaluating_the_initial_policy_gives_a_table_and_the_same_one_again(tmp_path, capsys):
    config = config_file(tmp_path, run_dir=str(tmp_path / "named"))
    evaluate.main([f"--config={config}"])
    printed = capsys.readouterr().out
    assert "| **initial** |" in printed and "initial.json" in printed
    assert "step 18/18" in printed  # 2 streams of 3 tasks: intact, blanked, true memory
    first = results(tmp_path / "named/eval/initial.json")
    evaluate.main([f"--config={config}", f"--out={tmp_path / 'elsewhere' / 'again'}"])
    assert results(tmp_path / "elsewhere/again.json") == first


def test_sigterm_ends_an_evaluation_with_the_status_of_a_stopped_training(
    tmp_path, monkeypatch, capsys
):
    play = protocols.play

    async def told_to_stop(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return await play(*arguments, **options)

    config = config_file(tmp_path, run_dir=str(tmp_path / "named"))
    monkeypatch.setattr(protocols, "play", told_to_stop)
    with pytest.raises(SystemExit) as stop:
        evaluate.main([f"--config={config}"])
    assert stop.value.code == errors.STOPPED
    assert "same command goes on" in capsys.readouterr().out
    assert not (tmp_path / "named/eval/initial.json").exists()


def test_a_run_is_evaluated_beside_its_initial_policy_as_at_its_end(run):
    evaluate.main([f"--run={run}"])
    found, final = results(run / "eval/step_1.json"), results(run / "eval/final.json")
    assert list(found["policies"]) == ["initial", "step 1"]
    assert found == final


def test_scaffolds_stand_beside_each_other(run):
    evaluate.main([f"--run={run}", "--set", "eval.scaffolds=act_write,in_context,stateless",
                   f"--out={run / 'eval' / 'scaffolds'}"])
    found = results(run / "eval/scaffolds.json")
    assert list(found["policies"]) == [
        f"{policy}{scaffold}" for policy in ("initial", "step 1")
        for scaffold in ("", ", in_context", ", stateless")]
    assert [row["scaffold"] for row in found["policies"].values()] == [
        "act_write", "in_context", "stateless"] * 2
    alone = results(run / "eval/final.json")["policies"]
    assert {name: found["policies"][name] for name in alone} == alone


def other(run, name):
    """The results of other models than the run's own."""
    (file,) = (run / "eval/others").glob(f"{name}-????????.json")
    return file


def test_actor_and_writer_can_be_different_models(run):
    evaluate.main([f"--run={run}", "--writer=initial"])
    (name, row), = results(other(run, "step_1___writer_initial"))["policies"].items()
    assert name == "step 1 + writer initial" and row["lost"] == 0
    # A model that is given twice is itself, where its writer reads a prompt of its own.
    fresh = ["--set", "rollout.writer_context=fresh"]
    evaluate.main([f"--run={run}", *fresh, f"--out={run / 'eval' / 'fresh'}"])
    evaluate.main([f"--run={run}", *fresh, f"--writer={run}/checkpoints/1"])
    (pair,) = results(other(run, "step_1___writer_step_1"))["policies"].values()
    assert pair == results(run / "eval/fresh.json")["policies"]["step 1"]


def test_a_model_or_a_checkpoint_of_another_run_can_act(run, tmp_path):
    config = config_file(tmp_path, run_dir=str(tmp_path / "named"))
    evaluate.main([f"--config={config}", f"--actor={run}"])
    evaluate.main([f"--config={config}", f"--actor={warm_model()}"])
    final = results(run / "eval/final.json")["policies"]
    others = {file.stem.rpartition("-")[0]: results(file)["policies"]
              for file in (tmp_path / "named/eval/others").glob("*.json")}
    assert others.pop("step_1_of_mine") == {"step 1 of mine": final["step 1"]}
    ((model,),) = (found.values() for found in others.values())
    assert model == final["initial"]


@pytest.mark.parametrize("arguments, message", [
    (["--writer=http://127.0.0.1:1/v1"], "write http://127.0.0.1:1/v1#MODEL"),
    (["--writer=nowhere"], "'nowhere': no directory with a config.json"),
    (["--actor=nowhere/checkpoints/3"], "nowhere has no checkpoint yet"),
    (["--writer=initial", "--actor=tiny-bytes-v1", "--set", "eval.scaffolds=in_context"],
     "writes no memory"),
])
def test_who_cannot_play_is_refused_without_a_traceback(tmp_path, arguments, message):
    with pytest.raises(SystemExit) as stop:
        evaluate.main([f"--config={config_file(tmp_path)}", *arguments])
    assert message in str(stop.value)


def test_a_run_that_is_not_there_is_refused_with_what_to_name():
    with pytest.raises(SystemExit) as stop:
        evaluate.main(["--run=runs/nowhere"])
    assert "runs/nowhere is no run directory" in str(stop.value)
    assert "name one that rime_jax.train made" in str(stop.value)


def test_results_of_another_game_are_not_written_over(run):
    before = (run / "eval/final.json").read_bytes()
    with pytest.raises(SystemExit) as stop:
        evaluate.main([f"--run={run}", f"--out={run}/eval/final", "--set", "env.trials=2"])
    assert "trials is 3 there and would be 2" in str(stop.value) and "--out" in str(stop.value)
    assert (run / "eval/final.json").read_bytes() == before


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(run):
    with pytest.raises(SystemExit) as stop:
        evaluate.main([f"--run={run}", f"--actor={run}/checkpoints/7"])
    assert "has those of steps [1]" in str(stop.value)


def test_a_run_without_a_checkpoint_is_refused_without_a_traceback(tmp_path):
    config_file(tmp_path)
    with pytest.raises(SystemExit) as stop:
        evaluate.main([f"--run={tmp_path}"])
    assert "has no checkpoint yet; train it first" in str(stop.value)
