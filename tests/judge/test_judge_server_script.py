"""launch/judge_server.sh and the part that waits for a server, with stand-ins for the servers."""

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from tests import test_launch

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = "launch/judge_server.sh"

# Serves as vLLM would, with a child of its own.
SERVER = """
import http.server, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def checkout(tmp_path):
    return test_launch.Checkout(tmp_path)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def vllm_script(tmp_path, program):
    """The command of a judge under a vLLM that is `program`, and its environment."""
    python = tmp_path / "python"
    python.write_text(f"#!/usr/bin/env bash\n[ \"$1\" != -m ] || set -- {tmp_path}/vllm.py \"$@\"\n"
                      f"exec {sys.executable} \"$@\"\n")
    python.chmod(0o755)
    (tmp_path / "vllm.py").write_text(program)
    port = free_port()
    return [str(ROOT / SCRIPT), "--vllm", "--port", port, "some/judge"], port, os.environ | {
        "RIME_VLLM_PYTHON": str(python)}


def alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


@pytest.mark.parametrize("arguments, command", [
    (["lexical", "--config=a.py"],
     "-m rime_jax.judge.serve --model lexical --name lexical --host 127.0.0.1 --port 8100 "
     "--config=a.py"),
    (["--name", "j", "--port", "1", "--vllm", "org/big", "--tensor-parallel-size", "2"],
     "python -m vllm.entrypoints.openai.api_server --model org/big --served-model-name j "
     "--host 127.0.0.1 --port 1 --generation-config vllm"),
])
def test_a_dry_run_prints_the_command_and_needs_nothing(checkout, arguments, command):
    status, printed, calls = checkout.run(SCRIPT, "--dry-run", *arguments)
    assert status == 0 and command in printed and calls == []
    assert printed.rstrip().endswith(arguments[-1])
    assert ("env VLLM_NO_USAGE_STATS=1 " in printed) == ("--vllm" in arguments)


def test_the_embedded_server_is_installed_and_started(checkout):
    model = checkout.elsewhere / "a model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    status, _, calls = checkout.run(SCRIPT, str(model))
    assert status == 0 and calls[1].startswith("pip install")
    assert calls[-1] == (f"rime_jax.judge.serve --model {model} --name a model --host 127.0.0.1 "
                         "--port 8100")


@pytest.mark.parametrize("arguments, says", [
    ([], "Usage"),
    (["nowhere"], "nowhere is no model directory"),
    (["--port"], "--port needs a value"),
    (["--wrong", "lexical"], "no such option: --wrong"),
    (["--vllm", "lexical"], "lexical judge"),
    (["lexical", "--dry-run"], "--dry-run is an option of this script; it stands before MODEL"),
    (["--vllm", "org/big", "--port=8101"], "--port is an option of this script"),
])
def test_wrong_arguments_are_named(checkout, arguments, says):
    status, printed, calls = checkout.run(SCRIPT, *arguments)
    assert status == 2 and says in printed and calls == []


def test_help_needs_no_installation(checkout):
    status, printed, calls = checkout.run(SCRIPT, "--help")
    assert status == 0 and "Usage: launch/judge_server.sh" in printed and calls == []


def test_a_server_is_announced_when_it_answers_and_stopped_with_its_children(tmp_path):
    command, port, environment = vllm_script(tmp_path, SERVER)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline().removeprefix("child "))
    ready = process.stdout.readline()
    assert ready == f"ready: judge.urls=http://127.0.0.1:{port}/v1 judge.model=judge\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0 and not alive(child)


@pytest.mark.parametrize("program, says", [
    ("raise SystemExit(3)", "ended before it answered"),
    ("import time; time.sleep(600)", "did not answer within 1 s"),
])
def test_a_server_that_never_answers_is_said_so_and_stopped(tmp_path, program, says):
    command, _, environment = vllm_script(tmp_path, program)
    done = subprocess.run(command, env=environment | {"RIME_VLLM_WAIT": "1"}, timeout=60,
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and says in done.stderr
