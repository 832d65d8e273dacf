"""Experiment files are valid configurations, and small changes of their parents."""

import ast
import pathlib
import re

import pytest

from rime_jax import config as config_lib
from rime_jax import experiment

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted((ROOT / "experiments").glob("**/*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_an_experiment_is_valid_and_says_what_it_is_for(file):
    experiment.read(str(file))
    said = ast.get_docstring(ast.parse(file.read_text()))
    assert said and ("Watch:" in said or "Used by:" in said)


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_an_experiment_is_at_most_ten_lines_over_its_parent(file):
    (function,) = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)]
    assert function.name == "get_config"
    lines = {line for statement in function.body
             for line in range(statement.lineno, statement.end_lineno + 1)}
    assert len(lines) <= 10


def test_experiments_that_change_something_have_names_of_their_own():
    """Two configurations of one name would share a run directory."""
    named = {}
    for file in FILES:
        config = experiment.read(str(file))
        same = named.setdefault(config.name, config)
        assert same == config, f"{file} calls itself {config.name} like another experiment"


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


@pytest.mark.parametrize(("text", "told"), [
    ("x = 1\n", "get_config"),
    ("def get_config():\n    pass\n", "get_config.*returned None"),
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


def test_clean_errors_end_the_program_with_the_message_alone():
    with pytest.raises(SystemExit) as stop, experiment.clean_errors():
        raise config_lib.ConfigError("steps = -1 is below 0")
    assert stop.value.code == "error: steps = -1 is below 0"
    with pytest.raises(ZeroDivisionError), experiment.clean_errors():
        raise ZeroDivisionError  # a fault of the program keeps its traceback
