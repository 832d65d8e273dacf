import math

import pytest

from rime_jax import config as config_lib
from rime_jax.tracking import run_dir
from rime_jax.tracking.run_dir import RunDir


def _files(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_new_run_gets_its_layout_and_its_configuration(tmp_path):
    run = RunDir(tmp_path / "runs" / "one")
    config = config_lib.default()
    assert run.create_or_resume(config, resume=True) is False
    assert config_lib.load(str(run.config)) == config
    for folder in (run.checkpoints, run.tb, run.samples, run.eval):
        assert folder.is_dir()


def test_the_same_configuration_resumes(tmp_path):
    RunDir(tmp_path).create_or_resume(config_lib.default(), resume=True)
    assert RunDir(tmp_path).create_or_resume(config_lib.default(), resume=True) is True


@pytest.mark.parametrize("name, value", [
    ("steps", "7"), ("run_dir", "elsewhere"), ("resume", "false"), ("track.text_every", "3"),
    ("eval.streams", "5"),
])
def test_options_outside_the_training_may_change_and_are_recorded(tmp_path, name, value):
    run = RunDir(tmp_path)
    run.create_or_resume(config_lib.default(), resume=True)
    config = config_lib.default()
    config_lib.override(config, {name: value})
    assert run.create_or_resume(config, resume=True) is True
    assert config_lib.load(str(run.config)) == config


@pytest.mark.parametrize("name, value", [
    ("learner.lr", "0.5"), ("seed", "1"), ("rollout.group_size", "4"), ("env.edges", "12,7"),
])
def test_another_configuration_is_refused_and_the_option_named(tmp_path, name, value):
    run = RunDir(tmp_path)
    run.create_or_resume(config_lib.default(), resume=True)
    before = _files(tmp_path)
    config = config_lib.default()
    config_lib.override(config, {name: value})
    with pytest.raises(config_lib.ConfigError, match=rf"{name} = .*--set {name}=.*run_dir"):
        run.create_or_resume(config, resume=True)
    assert _files(tmp_path) == before


def test_resume_off_never_touches_a_run_that_is_there(tmp_path):
    run = RunDir(tmp_path)
    run.create_or_resume(config_lib.default(), resume=False)
    run.write_samples(1, [{"a": 1}])
    before = _files(tmp_path)
    with pytest.raises(config_lib.ConfigError, match="run_dir"):
        run.create_or_resume(config_lib.default(), resume=False)
    assert _files(tmp_path) == before


def test_files_of_an_unknown_run_are_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(config_lib.ConfigError, match="no config.json"):
        RunDir(tmp_path).create_or_resume(config_lib.default(), resume=True)


def test_samples_are_read_back(tmp_path):
    run = RunDir(tmp_path)
    run.create_or_resume(config_lib.default(), resume=True)
    run.write_samples(20, [{"memory": "rot → grün\u2028\n", "ids": (1, 2)}, {"reward": math.nan}])
    run.write_samples(3, [])
    assert run.sample_steps() == [3, 20]
    assert run.read_samples(20) == [
        {"memory": "rot → grün\u2028\n", "ids": [1, 2]}, {"reward": None}
    ]
    assert run.read_samples(3) == []


def test_an_interrupted_dump_is_no_dump(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    run.create_or_resume(config_lib.default(), resume=True)
    run.write_samples(1, [{"a": 1}])

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", interrupted)
        for step in (1, 2):
            with pytest.raises(KeyboardInterrupt):
                run.write_samples(step, [{"a": 2}])
    assert run.sample_steps() == [1]
    assert run.read_samples(1) == [{"a": 1}]


def test_the_same_rows_give_the_same_bytes(tmp_path):
    run = RunDir(tmp_path)
    run.create_or_resume(config_lib.default(), resume=True)
    first = run.write_samples(1, [{"a": 1}]).read_bytes()
    assert run.write_samples(1, [{"a": 1}]).read_bytes() == first


def test_trainings_that_differ_in_a_number_are_different_ones():
    """What a deleted run left in eval/played must not become the next one's."""
    config = config_lib.default()
    same, other = run_dir.identity(config), config_lib.default()
    other.steps, other.eval.streams, other.track.samples_every = 7, 3, 0
    assert run_dir.identity(other) == same
    other.learner.lr *= 2
    assert run_dir.identity(other) != same
