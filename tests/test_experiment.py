"""Experiment files are valid configurations, and small changes of their parents."""

import ast
import pathlib
import re

import pytest

from rime_jax import config as config_lib
from rime_jax import experiment, guards
from rime_jax.policy import weights
from rime_jax.tracking import checkpoint

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted((ROOT / "experiments").glob("**/*.py"))
# Files of the study itself, which a sweep runs; those in models/ are what they start from.
STUDY = [file for file in FILES if file.parent.name != "models"]
CASES = [(file, size) for file in STUDY for size in ("", ":published", ":tiny")]


def label(value):
    return str(value.relative_to(ROOT)) if isinstance(value, pathlib.Path) else value


@pytest.mark.parametrize(("file", "size"), CASES, ids=label)
def test_an_experiment_is_valid_in_each_size(file, size):
    config = experiment.read(f"{file}{size}")
    assert config.name.endswith("_tiny") == (size == ":tiny")


@pytest.mark.parametrize("file", FILES, ids=label)
def test_an_experiment_is_valid_and_says_what_it_is_for(file):
    experiment.read(str(file))
    said = ast.get_docstring(ast.parse(file.read_text()))
    assert said and ("Watch:" in said or "Used by:" in said)


@pytest.mark.parametrize("file", STUDY, ids=label)
def test_an_experiment_says_its_hypothesis_its_row_and_the_curves_to_watch(file):
    said = ast.get_docstring(ast.parse(file.read_text()))
    if "Used by:" in said:
        return
    for word in ("Hypothesis:", "Row:", "Watch:"):
        assert word in said
    assert "Published:" in said or "Row: none" in said
    assert len(said.splitlines()[0]) <= 100 and said.splitlines()[1] == ""


@pytest.mark.parametrize("domain", ["alchemy", "codebase"])
def test_the_map_names_every_experiment_of_a_domain_and_no_other(domain):
    text = (ROOT / "experiments" / "README.md").read_text()
    section = text.split(f"(`experiments/{domain}/`)")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert ({name for row in rows for name in re.findall(r"`(\w+\.py)`", row)}
            == {file.name for file in STUDY if file.parent.name == domain})


@pytest.mark.parametrize("file", FILES, ids=label)
def test_an_experiment_is_at_most_ten_lines_over_its_parent(file):
    (function,) = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)]
    assert function.name == "get_config"
    lines = {line for statement in function.body
             for line in range(statement.lineno, statement.end_lineno + 1)}
    assert len(lines) <= 10


def test_experiments_that_change_something_have_names_of_their_own():
    """Two configurations of one name would share a run directory."""
    named = {}
    for file, size in CASES:
        config = experiment.read(f"{file}{size}")
        same = named.setdefault(config.name, config)
        assert same == config, f"{file}{size} calls itself {config.name} like another experiment"


@pytest.mark.parametrize("file", STUDY, ids=label)
def test_the_tiny_size_needs_nothing_but_what_is_shipped(file):
    config = experiment.read(f"{file}:tiny")
    assert (weights.ASSETS / config.model.path / "model.safetensors").is_file()
    assert config.judge.kind == "lexical" and config.sampler.kind == "native"


@pytest.mark.parametrize("domain", ["alchemy", "codebase"])
@pytest.mark.parametrize("size", ["published", "tiny"])
def test_every_row_changes_what_it_names_and_nothing_else(domain, size):
    folder = f"{ROOT}/experiments/{domain}"
    rime = dict(config_lib.flatten(experiment.read(f"{folder}/rime.py:{size}")))

    def changed(name):
        config = dict(config_lib.flatten(experiment.read(f"{folder}/{name}.py:{size}")))
        return {k for k, v in config.items() if v != rime[k]} - {"name"}

    assert changed("exploration_off") == {"reward.exploration"}
    assert changed("writer_untrained") == changed("writer_format") == {"reward.writer"}
    assert (changed("actor_only") == changed("writer_format_exploration_off")
            == {"reward.writer", "reward.exploration"})
    assert changed("horizon_1") == changed("horizon_5") == {"reward.horizon"}
    assert changed("lambda_0_1") == changed("lambda_1") == {"reward.exploration"}
    assert changed("memory_half") == {"rollout.memory_tokens"}
    assert changed("prompted") == {"steps", "learner.lr"}
    if domain == "alchemy":
        assert (changed("baseline_fitted") == changed("baseline_none")
                == {"reward.history_baseline"})
    branched = {"steps", "seed", "model.branch_from"}
    assert changed("co_train_continued") == branched
    assert changed("decoupled") == branched | {"roles.act", "roles.write", "roles.train"}
    assert changed("frozen_writer") == changed("decoupled")


def test_a_fresh_start_of_all_branches_is_the_branch_point_of_their_own_size_and_domain():
    for domain, prefix in (("alchemy", ""), ("codebase", "codebase_")):
        for size, suffix in (("", ""), (":tiny", "_tiny")):
            for name in ("co_train_continued", "decoupled", "frozen_writer"):
                config = experiment.read(f"{ROOT}/experiments/{domain}/{name}.py{size}")
                run = f"runs/{prefix}branch_point{suffix}"
                assert config.model.branch_from == f"{run}/checkpoints/last"
                point = experiment.read(f"{ROOT}/experiments/{domain}/branch_point.py{size}")
                assert f"runs/{point.name}" == run


def test_arguments_behind_a_file_are_its_size_and_values_of_options():
    file = f"{ROOT}/experiments/alchemy/rime.py"
    config = experiment.read(f"{file}:tiny,steps=3,env.edges=12,10,learner.lr=1e-3")
    assert (config.name, config.steps, config.env.edges, config.learner.lr) == (
        "rime_tiny", 3, (12, 10), 1e-3)
    assert experiment.read(f"{file}:steps=3") == experiment.read(file, ["steps=3"])
    assert experiment.read(f"{file}:tiny,steps=3", ["steps=4"]).steps == 4
    assert experiment.read(f"{file}:tiny,name=mine").name == "mine"


@pytest.mark.parametrize(("arguments", "told"), [
    ("tinny", "'tinny' is no argument; write a size .published, tiny.*rime.py:tiny,steps=3"),
    ("", "'' is no argument"),
    ("steps=3,tiny", "'tiny' is no argument"),
    ("tiny,tiny", "'tiny' is no argument"),
    ("tiny,", "'' is no argument"),
    ("tiny,=3", "'=3' is no argument"),
    ("tiny,stepps=3", "unknown option 'stepps'.*steps"),
    ("tiny,steps=many", "steps.*many"),
    ("tiny,steps=3,4", "steps.*3,4"),
])
def test_an_argument_that_means_nothing_is_named(arguments, told):
    with pytest.raises(config_lib.ConfigError, match=told):
        experiment.read(f"{ROOT}/experiments/alchemy/rime.py:{arguments}")


def test_a_size_of_a_file_that_has_one_is_refused_with_the_remedy(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from rime_jax import config\n\n\ndef get_config():\n"
                    "    return config.default()\n")
    assert experiment.read(f"{file}:steps=3").steps == 3
    with pytest.raises(config_lib.ConfigError, match=r"one size.*get_config\(size='published'\)"):
        experiment.read(f"{file}:tiny")


def test_a_saved_configuration_takes_no_arguments(tmp_path):
    saved = tmp_path / "config.json"
    saved.write_text(config_lib.dump(config_lib.default()))
    with pytest.raises(config_lib.ConfigError, match="no arguments; change options with --set"):
        experiment.read(f"{saved}:steps=3")


def test_a_saved_configuration_reads_as_the_experiment_it_came_from(tmp_path):
    for file in FILES:
        config = experiment.read(str(file), ["steps=7", "env.edges=12"])
        saved = tmp_path / "config.json"
        saved.write_text(config_lib.dump(config))
        assert experiment.read(str(saved)) == config
        assert config.steps == 7


@pytest.mark.parametrize(("body", "told"), [
    ("c.learner.rate = 1.0", "rate"),
    ("c.learner.lr = 'fast'", "fast|float"),
    ("c.rollout.group_size = 1", r"rollout\.group_size = 1 is below 2"),
])
def test_a_mistake_in_an_experiment_names_the_field(tmp_path, body, told):
    file = tmp_path / "mine.py"
    file.write_text("from rime_jax import config\n\n\ndef get_config():\n"
                    f"    c = config.default()\n    {body}\n    return c\n")
    with pytest.raises(config_lib.ConfigError) as error:
        experiment.read(str(file))
    assert re.search(told, str(error.value))


def test_a_misspelt_option_is_told_with_its_line_and_the_nearest_one_alone(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from rime_jax import config\n\ndef get_config():\n    c = config.default()\n"
                    "    c.learner.lrr = 1.0\n    return c\n")
    with pytest.raises(config_lib.ConfigError) as error:
        experiment.read(str(file))
    told = str(error.value)
    assert "mine.py, line 5: " in told and 'Did you mean "lr"' in told and len(told) < 250 + len(
        str(file))


@pytest.mark.parametrize(("text", "told"), [
    ("x = 1\n", "get_config"),
    ("def get_config():\n    pass\n", "get_config.*returned None"),
    ("def get_config(:\n", "SyntaxError: .*line 1"),
    ("def get_config():\n    return 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
    ("from rime_jax import nothing_such\n", "line 1: ImportError: .*nothing_such"),
])
def test_a_file_without_a_configuration_is_refused(tmp_path, text, told):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(config_lib.ConfigError, match=told):
        experiment.read(str(file))


@pytest.mark.parametrize("name", ["absent.py", "absent.json"])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(config_lib.ConfigError, match=name):
        experiment.read(str(tmp_path / name))


def test_files_of_options_may_have_spaces_and_the_mark_of_windows_editors(tmp_path):
    file = tmp_path / "options.txt"
    file.write_bytes("\ufeff# mine\r\nsteps = 5\r\n\r\nenv.edges=12, 10\r\n".encode())
    config = experiment.read(f"{ROOT}/experiments/alchemy/rime.py:tiny", [f"@{file}"])
    assert config.steps == 5 and tuple(config.env.edges) == (12, 10)
    file.write_text("steps=5\nlr 3\n")
    with pytest.raises(config_lib.ConfigError, match=f"lr 3: .* in {file}, line 2"):
        experiment.read(f"{ROOT}/experiments/alchemy/rime.py:tiny", [f"@{file}"])


def test_a_parent_that_cannot_be_imported_is_named_with_the_remedy(tmp_path):
    (tmp_path / "fork.py").write_text("import parent_elsewhere\n")
    with pytest.raises(config_lib.ConfigError, match="'parent_elsewhere'; start .*PYTHONPATH"):
        experiment.read(str(tmp_path / "fork.py"))


@pytest.mark.parametrize(("error", "status", "told"), [
    (config_lib.ConfigError("steps = -1 is below 0"), 78, "error: steps = -1 is below 0\n"),
    (weights.ModelError("no weights"), 78, "error: no weights\n"),
    (checkpoint.CheckpointError("another model"), 78, "error: another model\n"),
    (guards.TrainingError("nothing was trained"), 1, "error: nothing was trained\n"),
    (OSError(28, "No space left", "file"), 1, "error: No space left: file; nothing that was "),
    (PermissionError(13, "Permission denied", "/a"), 78, "error: Permission denied: /a; name "),
    (FileExistsError(17, "File exists", "a"), 78, "error: File exists: a; name another place"),
])
def test_clean_errors_end_the_program_with_the_message_alone(capsys, error, status, told):
    with pytest.raises(SystemExit) as stop, experiment.clean_errors():
        raise error
    assert stop.value.code == status and capsys.readouterr().err.startswith(told)


def test_a_fault_of_the_program_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), experiment.clean_errors():
        raise ZeroDivisionError
