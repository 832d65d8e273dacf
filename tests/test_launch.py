"""The launch scripts, run with a stand-in for Python that records what it is asked to do."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest
import setuptools

from tests import launched

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = [*sorted((ROOT / "launch").rglob("*.sh")), ROOT / ".ci" / "run"]

# Answers the version question, "makes" an environment by copying itself, and logs everything else.
FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in
  -c*) [ -z "$FAKE_OLD" ] || exit 1; echo "${FAKE_VERSION:-3.11}"; exit ;;
  "-m venv "*) echo "venv $3" >>"$FAKE_LOG"; mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit ;;
esac
echo "${*:2}" >>"$FAKE_LOG"
case "$2" in
  pip) exit "${FAKE_PIP_STATUS:-0}" ;;
  rime_jax.train) echo "XLA_FLAGS=$XLA_FLAGS" >>"$FAKE_LOG"; pwd -P >>"$FAKE_LOG" ;;
esac
"""


class Checkout:
    """A copy of the scripts in a directory with a space, and a way to run them."""

    def __init__(self, path: pathlib.Path):
        self.root = path / "a clone"
        shutil.copytree(ROOT / "launch", self.root / "launch")
        shutil.copytree(ROOT / ".ci", self.root / ".ci")
        shutil.copytree(ROOT / "experiments", self.root / "experiments")
        for name in ("setup.py", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root / name)
        self.venv = path / "an environment"
        self.log = path / "log"
        self.elsewhere = path / "elsewhere"
        self.elsewhere.mkdir()
        fake = path / "bin" / "python3"
        fake.parent.mkdir()
        fake.write_text(FAKE_PYTHON)
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            "PATH": f"{fake.parent}:/usr/bin:/bin", "HOME": str(path), "RIME_VENV": str(self.venv),
            "FAKE_LOG": str(self.log), "FAKE_OLD": "",
        }

    def run(self, script, *arguments, **environment):
        """Returns (exit status, everything printed, what the stand-in was asked)."""
        self.log.write_text("")
        done = subprocess.run(
            [str(self.root / script), *arguments], cwd=self.elsewhere, text=True, timeout=60,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self.environment | environment)
        return done.returncode, done.stdout, self.log.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def _installs(calls):
    return [call for call in calls if call.startswith("pip install")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_valid_bash(script):
    subprocess.run(["bash", "-n", str(script)], check=True)


# Beside this Python where the extra `test` brought it.
SHELLCHECK = shutil.which(
    "shellcheck", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed (extra test)")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_no_complaint(script):
    subprocess.run([SHELLCHECK, "-x", str(script)], cwd=ROOT, check=True)


@pytest.mark.parametrize("script", [s for s in SCRIPTS if not s.name.startswith("_")],
                         ids=lambda path: path.name)
def test_scripts_are_executable(script):
    assert os.access(script, os.X_OK)


def test_the_study_installs_and_hands_its_arguments_on(checkout):
    status, _, calls = checkout.run("launch/study.sh", "--quick", "--out", "a place")
    assert status == 0 and calls[0] == f"venv {checkout.venv}"
    assert calls[2:] == ["rime_jax.study --quick --out a place"]


@pytest.mark.parametrize("script", ["local", "test", "install", "setup_vllm", "smollm",
                                    "vllm_server", "study"])
def test_help_needs_no_installation(checkout, script):
    status, printed, calls = checkout.run(f"launch/{script}.sh", "--help")
    assert status == 0 and f"Usage: launch/{script}.sh" in printed and calls == []


@pytest.mark.parametrize("words", [
    ["install", "everything"], ["install", "test", "parity"], ["setup_vllm", "--dry-run"],
    ["vllm_server", "nowhere"], ["vllm_server", ".", "--dry-run"]])
def test_what_a_script_does_not_know_installs_nothing(checkout, words):
    (checkout.elsewhere / "config.json").touch()  # a model is there
    status, printed, calls = checkout.run(f"launch/{words[0]}.sh", *words[1:])
    assert status == 2 and calls == []


def test_the_first_call_installs_and_trains_from_any_directory(checkout):
    status, printed, calls = checkout.run("launch/local.sh", "--set", "steps=2")
    assert status == 0
    assert calls[0] == f"venv {checkout.venv}"
    assert calls[1] == (f"pip install --constraint {checkout.root}/constraints.txt "
                        f"--editable {checkout.root}")
    assert calls[2] == "rime_jax.train --config=experiments/alchemy/rime.py:tiny --set steps=2"
    assert "--xla_force_host_platform_device_count=" in calls[3]
    assert calls[4] == str(checkout.root.resolve())
    assert "tensorboard --logdir" in printed


@pytest.mark.parametrize(("given", "meant"), [
    (["--config=my folder/mine.py"], "--config=my folder/mine.py:tiny"),
    (["--config", "my folder/mine.py"], "--config my folder/mine.py:tiny"),
    (["--config=my folder/mine.py:published"], "--config=my folder/mine.py:published"),
    (["--config=my folder/one_size.py"], "--config=my folder/one_size.py"),
    (["--config=absent.py"], "--config=absent.py"),
    (["--config=runs/rime_tiny/config.json"], "--config=runs/rime_tiny/config.json"),
])
def test_an_experiment_that_has_sizes_runs_in_that_for_this_machine_unless_one_is_named(
        checkout, given, meant):
    mine = checkout.root / "my folder"
    mine.mkdir()
    (mine / "mine.py").write_text("def get_config(size='published'):\n    ...\n")
    (mine / "one_size.py").write_text("def get_config():\n    ...\n")
    _, _, calls = checkout.run("launch/local.sh", *given)
    assert calls[2] == f"rime_jax.train --config=experiments/alchemy/rime.py:tiny {meant}"


def test_flags_of_the_user_are_left_alone(checkout):
    _, _, calls = checkout.run("launch/local.sh", XLA_FLAGS="--mine")
    assert "XLA_FLAGS=--mine" in calls


def test_a_complete_environment_is_used_as_it_is(checkout):
    checkout.run("launch/local.sh")
    status, printed, calls = checkout.run("launch/local.sh", FAKE_PIP_STATUS="1")
    assert status == 0 and _installs(calls) == [] and "Installing" not in printed


def test_the_status_of_the_training_is_passed_on(checkout):
    checkout.run("launch/local.sh")
    python = checkout.venv / "bin" / "python"
    python.write_text(FAKE_PYTHON + "exit 7\n")
    assert checkout.run("launch/local.sh")[0] == 7


def test_tests_bring_their_extra_and_serve_training_too(checkout):
    checkout.run("launch/local.sh")
    _, _, calls = checkout.run("launch/test.sh", "-k", "memory")
    assert _installs(calls) == [f"pip install --constraint {checkout.root}/constraints.txt "
                                f"--editable {checkout.root}[test]"]
    assert calls[-1] == "pytest -k memory"
    assert _installs(checkout.run("launch/local.sh")[2]) == []


def test_what_is_measured_ends_with_the_status_of_the_tests(checkout):
    checkout.run("launch/test.sh")
    python = checkout.venv / "bin" / "python"
    python.write_text(FAKE_PYTHON + '[ "$2 $3" != "coverage run" ] || exit 5\n')
    status, _, calls = checkout.run("launch/test.sh", "--coverage", "-k", "memory")
    assert status == 5 and calls == [
        "coverage erase", "coverage run -m pytest -k memory", "coverage combine --quiet",
        "tests.coverage_table"]


def test_an_interrupted_installation_is_made_again(checkout):
    status, printed, _ = checkout.run("launch/local.sh", FAKE_PIP_STATUS="1")
    assert status == 1 and "start this script again" in printed
    leftover = checkout.venv / "lib" / "half a package"
    leftover.mkdir(parents=True)
    status, _, calls = checkout.run("launch/local.sh")
    assert status == 0 and not leftover.exists()
    assert calls[0] == f"venv {checkout.venv}" and len(_installs(calls)) == 1


@pytest.mark.parametrize("name", ["setup.py", "constraints.txt", "pyproject.toml"])
def test_changed_requirements_are_installed_into_the_same_environment(checkout, name):
    checkout.run("launch/local.sh")
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    _, _, calls = checkout.run("launch/local.sh")
    assert len(_installs(calls)) == 1 and not any(call.startswith("venv") for call in calls)


def test_a_larger_environment_serves_the_smaller_kinds_too(checkout):
    status, _, calls = checkout.run(".ci/run", "-k", "memory")
    assert status == 0 and "[test,parity,docs]" in _installs(calls)[0]
    assert calls[-1] == "pytest -k memory"
    assert _installs(checkout.run("launch/test.sh")[2]) == []
    assert _installs(checkout.run("launch/local.sh")[2]) == []


def test_continuous_integration_ends_on_the_newest_python_that_runs(checkout):
    home = checkout.root.parent
    for name in ("python3.13", "python3.12"):
        launched.program(home / "bin" / name, "#!/usr/bin/env bash\nexit 127\n")
    status, printed, calls = checkout.run(".ci/run")
    assert status == 0 and "no Python 3.13 or 3.12" in printed
    assert not any("runs/newer" in call for call in calls)
    for version in ("3.12", "3.13"):
        newest = home / f".pyenv/versions/{version}.0/bin/python"
        launched.program(newest, FAKE_PYTHON.replace("VERSION:-3.11", f"VERSION:-{version}"))
    status, printed, calls = checkout.run(".ci/run")
    assert status == 0 and f"with {newest} (Python 3.13)" in printed
    begins = calls.index(f"venv {checkout.venv}-newer")
    pages = "pytest -m docs_commands tests/test_docs_commands.py tests/study/test_whole.py"
    assert pages in calls[:begins] and calls[-1] == pages
    assert any(call.startswith("rime_jax.train") for call in calls[begins:])
    assert "coverage run -m pytest" in calls[begins:]


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_an_environment_for_a_device_trains_and_is_brought_up_to_the_tests(checkout, kind):
    status, printed, calls = checkout.run("launch/install.sh", kind)
    assert status == 0 and f"rime_jax is in {checkout.venv}" in printed
    assert _installs(calls)[0].endswith(f"[{kind}]")
    assert _installs(checkout.run("launch/install.sh", kind)[2]) == []
    assert _installs(checkout.run("launch/local.sh")[2]) == []
    (brought,) = _installs(checkout.run("launch/test.sh")[2])
    assert brought.endswith("[test]")


def test_a_kind_that_there_is_not_is_refused(checkout):
    status, printed, calls = checkout.run("launch/install.sh", "npu")
    assert status == 2 and "Usage" in printed and calls == []


def test_another_python_makes_a_new_environment(checkout):
    checkout.run("launch/local.sh")
    other = checkout.root.parent / "bin" / "another python"
    other.write_text(FAKE_PYTHON.replace("FAKE_VERSION:-3.11", "FAKE_VERSION:-3.13"))
    other.chmod(0o755)
    _, _, calls = checkout.run("launch/local.sh", RIME_PYTHON=str(other))
    assert calls[0] == f"venv {checkout.venv}" and len(_installs(calls)) == 1
    assert _installs(checkout.run("launch/local.sh", RIME_PYTHON=str(other))[2]) == []


def test_an_environment_whose_python_is_gone_is_made_again(checkout):
    checkout.run("launch/local.sh")
    (checkout.venv / "bin" / "python").unlink()
    status, _, calls = checkout.run("launch/local.sh")
    assert status == 0 and calls[0] == f"venv {checkout.venv}"


def test_a_directory_of_someone_else_is_refused_and_untouched(checkout):
    checkout.venv.mkdir()
    (checkout.venv / "thesis.tex").write_text("all of it")
    status, printed, calls = checkout.run("launch/local.sh")
    assert status == 1 and calls == [] and "RIME_VENV" in printed
    assert [p.name for p in checkout.venv.iterdir()] == ["thesis.tex"]


def test_a_python_that_is_too_old_is_explained(checkout):
    status, printed, calls = checkout.run(
        "launch/local.sh", FAKE_OLD="1", RIME_PYTHON=str(checkout.root.parent / "bin" / "python3"))
    assert status == 1 and "3.11" in printed and "RIME_PYTHON" in printed and calls == []
    assert not checkout.venv.exists()


def test_every_folder_with_code_is_packaged():
    folders = {path.parent for path in (ROOT / "rime_jax").rglob("*.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    packaged = setuptools.find_packages(str(ROOT), include=["rime_jax", "rime_jax.*"])
    assert names == set(packaged)
