"""Preparing a set: made-up repositories whose environments are there already."""

import json
import pathlib

import pytest

from rime_jax import config as config_lib
from rime_jax import domain_codebase
from rime_jax.envs.codebase import backends, prepare, sandbox, trees
from rime_jax.tracking import progress
from tests.envs.codebase import repositories


def row(task, **changed):
    return {"instance_id": task.instance_id, "repo": task.repository, "patch": task.setup_patch,
            # Both forms of lists that rows in the wild have.
            "FAIL_TO_PASS": json.dumps(task.fail_to_pass), "PASS_TO_PASS": list(task.pass_to_pass),
            "problem_statement": task.statement} | changed


@pytest.fixture
def arguments(tmp_path):
    library, tasks = repositories.make(tmp_path, "alpha")
    repositories.environment(tmp_path / "cache" / "environments" / "alpha")
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(row(task)) for task in tasks[:3]))
    (tmp_path / "libraries.json").write_text(json.dumps([vars(library)]))
    return [f"--tasks={tmp_path}/tasks.jsonl", f"--libraries={tmp_path}/libraries.json",
            f"--cache-dir={tmp_path}/cache"]


def test_a_prepared_set_is_validated_once(box, arguments, tmp_path, capsys, monkeypatch):
    assert prepare.main(arguments) == 0
    assert (tmp_path / "cache" / "sources" / "alpha" / "alpha.py").is_file()
    assert prepare.main([*arguments, "--validate", "--workers=2"]) == 0
    assert "3 of 3 tasks are valid" in capsys.readouterr().out
    monkeypatch.setattr(prepare.validation, "_reason", None)
    assert prepare.main([*arguments, "--validate"]) == 0
    assert "3 of 3 tasks are valid" in capsys.readouterr().out


def test_what_is_no_task_is_named_and_the_others_are_kept(box, arguments, tmp_path, capsys):
    file = tmp_path / "tasks.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["FAIL_TO_PASS"] = rows[0]["PASS_TO_PASS"][:1]
    rows[1]["patch"] = rows[1]["patch"].replace("a + b", "a * b")
    file.write_text("\n".join(map(json.dumps, rows)))
    assert prepare.main([*arguments, "--validate"]) == 1
    told = capsys.readouterr()
    assert "1 of 3 tasks are valid" in told.out
    assert f"{rows[0]['instance_id']} is no task: 1 of FAIL_TO_PASS pass without" in told.err
    assert f"{rows[1]['instance_id']} is no task: applying the patch" in told.err


def test_a_library_that_cannot_be_had_is_named_with_the_remedy(box, tmp_path, capsys):
    library, (task, *_) = repositories.make(tmp_path, "beta")
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row(task)))
    (tmp_path / "libraries.json").write_text(
        json.dumps([vars(library) | {"url": f"{tmp_path}/nowhere@0"}]))
    assert prepare.main([f"--tasks={tmp_path}/tasks.jsonl", "--validate",
                         f"--libraries={tmp_path}/libraries.json",
                         f"--cache-dir={tmp_path}/cache"]) == 1
    told = capsys.readouterr()
    assert "beta cannot be had: cloning" in told.err and "HTTPS_PROXY" in told.err
    assert "0 of 1 tasks are valid" in told.out


def test_without_a_sandbox_nothing_is_fetched(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(backends.bubblewrap.shutil, "which", lambda name: None)
    assert prepare.main(arguments) == 1
    told = capsys.readouterr().err
    assert "error: no sandbox works here" in told and "apt install bubblewrap" in told
    assert not (tmp_path / "cache" / "sources").exists()


@pytest.mark.parametrize(("files", "words"), [
    (["--tasks=tasks.jsonl"], "go together"),
    (["--tasks=gone.jsonl", "--libraries=libraries.json"], "gone.jsonl cannot be read"),
    (["--tasks=tasks.jsonl", "--libraries=none.json"], "does not say where alpha can be fetched"),
])
def test_wrong_files_are_named(arguments, tmp_path, capsys, monkeypatch, files, words):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("none.json").write_text("[]")
    assert prepare.main([*files, "--cache-dir=cache"]) == 1
    assert words in capsys.readouterr().err


def test_a_broken_sandbox_ends_the_validation(arguments, tmp_path, monkeypatch):
    def broken(*_):
        raise sandbox.SandboxError("no more")

    monkeypatch.setattr(prepare.validation, "validate", broken)
    _, (task, *_) = repositories.make(tmp_path / "again", "alpha")
    with pytest.raises(sandbox.SandboxError, match="no more"):
        prepare.validate(None, [task], None, tmp_path, 1, progress.Progress(1))


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert trees.cache_directory() == tmp_path / "rime_jax" / "codebase"
    assert trees.cache_directory("~/x") == pathlib.Path.home() / "x"


def test_training_says_what_is_not_prepared(box, tmp_path, caplog):
    options = config_lib.default()
    options.env.domain, options.env.trials = "codebase", 12
    options.env.cache_dir = str(tmp_path)
    domain_codebase.make(options)
    assert "20 of 20 libraries are not prepared" in caplog.text
    assert "rime_jax.envs.codebase.prepare" in caplog.text
