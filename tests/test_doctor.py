"""rime_jax.doctor: what is missing is told with its remedy, and nothing secret is told."""

import http.server
import importlib.metadata
import json
import shutil
import subprocess
import sys
import threading
import types

import pytest

from rime_jax import config as config_lib
from rime_jax import experiment
from rime_jax.doctor import __main__ as doctor
from rime_jax.doctor import findings, machine, run
from rime_jax.doctor.findings import Finding
from rime_jax.envs.codebase import backends, sandbox
from rime_jax.tracking import run_dir
from tests import launched

TINY = str(launched.ROOT / "experiments/alchemy/rime.py") + ":tiny"


def config(tmp_path, *assignments):
    return experiment.read(TINY, [f"run_dir={tmp_path}/run", *assignments])


def by_name(found):
    return {f.name: f for f in found}


@pytest.fixture
def quick(monkeypatch):
    """Without the parts that start processes."""
    monkeypatch.setattr(machine, "devices", lambda: iter(()))
    monkeypatch.setattr(machine, "sandboxes", lambda asked=None: iter(()))


def told(capsys, *arguments):
    """(exit status, output) of the program."""
    with pytest.raises(SystemExit) as end:
        doctor.main(arguments)
    return end.value.code, capsys.readouterr().out


# ---------------------------------------------------------------------- the program


def test_a_machine_that_has_what_a_run_needs_has_nothing_to_fix(quick, capsys, tmp_path):
    status, text = told(capsys, f"--config={TINY}", "--set", f"run_dir={tmp_path}/run")
    assert status == 0 and text.endswith("Nothing to fix.\n") and "FAIL" not in text


def test_json_has_every_finding_and_the_verdict_of_all(quick, capsys, tmp_path):
    status, text = told(capsys, f"--config={TINY}", "--json", "--set", "model.path=nowhere",
                        f"run_dir={tmp_path}/run")
    read = json.loads(text)
    assert status == 1 and not read["ok"]
    assert {f["verdict"] for f in read["findings"]} <= {"ok", "note", "bad"}
    (bad,) = (f for f in read["findings"] if f["verdict"] == "bad")
    assert bad["name"] == "model" and "nowhere" in bad["said"] and bad["remedy"]


def test_a_wrong_configuration_is_a_finding_and_the_machine_is_told_all_the_same(quick, capsys):
    status, text = told(capsys, f"--config={TINY}", "--set", "rollout.group_size=1")
    assert status == 1 and "rollout.group_size = 1" in text and "jaxlib" in text


def test_it_runs_as_a_program_and_asks_the_devices_in_another_process(tmp_path):
    done = subprocess.run([sys.executable, "-m", "rime_jax.doctor", "--json"],
                          cwd=launched.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert "8 × cpu" in found["cpu"]["said"] and "bubblewrap" in found


# ---------------------------------------------------------------------- secrets


@pytest.mark.parametrize(("text", "left"), [
    ("http://me:secret@h:1/v1", "http://…@h:1/v1"),
    ("ask https://h/v1?key=secret, or", "ask https://h/v1?…, or"),
    ("holds 'http://h/?secret'; write", "holds 'http://h/?…'; write"),
    ("in /home/somebody/runs", "in ~/runs"),
    ("in /home/somebody", "in ~"),
    ("in /home/somebodyelse", "in /home/somebodyelse"),
    ("C = 1 @ 2", "C = 1 @ 2"),
])
def test_addresses_and_paths_lose_what_is_private(text, left, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert findings.without_secrets(text) == left


def test_keys_are_told_to_be_set_and_never_told(quick, capsys, monkeypatch, tmp_path):
    for name in ("RIME_JUDGE_API_KEY", "RIME_SAMPLER_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "sekret")
    for extra in ([], ["--json"]):
        status, text = told(
            capsys, f"--config={TINY}", *extra, "--set", f"run_dir={tmp_path}/run",
            "judge.kind=server", "judge.model=j", "judge.urls=http://me:sekret@127.0.0.1:9/v1")
        assert status == 1 and "sekret" not in text
        assert "RIME_JUDGE_API_KEY" in text and "is set" in text


# ---------------------------------------------------------------------- the machine


def test_a_package_that_is_not_there_is_to_be_fixed(monkeypatch):
    version = importlib.metadata.version

    def without_optax(name):
        if name == "optax":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_optax)
    found = by_name(machine.versions())
    assert found["optax"].verdict == "bad" and "launch/install.sh" in found["optax"].remedy
    assert found["jax"].verdict == "ok"


def test_a_version_is_compared_with_what_the_package_asks_for(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [
        "jax>=99", "optax>=0.1", 'flax>=99; extra == "other"'])
    found = by_name(machine.versions())
    assert found["jax"].verdict == "bad" and "asks for >=99" in found["jax"].said
    assert found["optax"].verdict == found["flax"].verdict == "ok"


@pytest.mark.parametrize(("program", "limit", "said"), [
    ("import sys; sys.exit('the device is gone')", 60.0, "the device is gone"),
    ("import time; time.sleep(60)", 0.5, "no answer within"),
])
def test_devices_that_fail_or_hang_are_to_be_fixed(monkeypatch, program, limit, said):
    monkeypatch.setattr(machine, "_LIST_DEVICES", program)
    monkeypatch.setattr(machine, "_DEVICES_S", limit)
    (found,) = machine.devices()
    assert found.verdict == "bad" and said in found.said and found.remedy


def test_a_gpu_that_jax_does_not_see_is_to_be_fixed_unless_cpus_are_asked_for(
        monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_LIST_DEVICES",
                        "print('[\"cpu\", \"cpu\", 1, 0, 0.0]')")
    launched.program(tmp_path / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H100'\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert [f.verdict for f in machine.devices()] == ["ok"]
    monkeypatch.delenv("JAX_PLATFORMS")
    _, unseen = machine.devices()
    assert unseen.verdict == "bad" and "launch/install.sh gpu" in unseen.remedy


class Box:
    """A sandbox whose commands print `output`."""

    def __init__(self, output):
        self._output = output

    def open(self, base):
        return self

    def run(self, command):
        return types.SimpleNamespace(exit_code=0, output=self._output)

    def close(self):
        pass


def test_a_sandbox_is_a_note_until_a_run_needs_it(monkeypatch):
    def make(name, limits):
        if name == "docker":
            raise sandbox.SandboxError("no daemon")
        return Box("works\n" if name == "bubblewrap" else "")

    monkeypatch.setattr(backends, "make", make)
    unasked = by_name(machine.sandboxes())
    assert set(unasked) == {"bubblewrap", "docker", "podman", "apptainer"}
    assert unasked["docker"].verdict == "note" and unasked["bubblewrap"].verdict == "ok"
    assert "no command was run" in unasked["podman"].said
    assert by_name(machine.sandboxes("docker"))["docker"].verdict == "bad"
    asked = by_name(machine.sandboxes("podman"))["podman"]
    assert asked.verdict == "bad" and "runs no commands" in asked.said


# ---------------------------------------------------------------------- what a run needs


def test_the_size_of_the_model_is_told(tmp_path):
    found, count = run.model(config(tmp_path))
    assert found.verdict == "ok" and 100_000 < count < 200_000


def test_a_new_directory_and_one_with_checkpoints_are_told_apart(tmp_path):
    c = config(tmp_path)
    assert "(new)" in by_name(run.directory(c, TINY, 1))["directory"].said
    assert not (tmp_path / "run").exists()
    for name in ("20", "100", "40.orbax-checkpoint-tmp"):
        (tmp_path / "run/checkpoints" / name).mkdir(parents=True)
    assert "goes on after step 100" in by_name(run.directory(c, TINY, 1))["directory"].said


def test_a_directory_that_another_process_trains_in_is_to_be_fixed(tmp_path):
    c = config(tmp_path)
    with run_dir.RunDir(c.run_dir).lock():
        found = by_name(run.directory(c, TINY, 1))["directory"]
    assert found.verdict == "bad" and "another process trains" in found.said
    assert by_name(run.directory(c, TINY, 1))["directory"].verdict == "ok"


def test_a_directory_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "run").write_text("")
    c = config(tmp_path, f"run_dir={tmp_path}/run/deeper")
    (found,) = run.directory(c, TINY, 1)
    assert found.verdict == "bad" and "cannot be written" in found.said


def test_a_disk_without_room_for_the_checkpoints_is_to_be_fixed(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=40e9))
    c = config(tmp_path, "track.checkpoint_keep=2")
    # Three checkpoints of twelve bytes a parameter.
    assert by_name(run.directory(c, TINY, 1_000_000_000))["disk"].verdict == "ok"
    found = by_name(run.directory(c, TINY, 1_200_000_000))["disk"]
    assert found.verdict == "bad" and "need about 44 GB" in found.said


class _Answers(http.server.BaseHTTPRequestHandler):
    """Healthy, and serves the model `j`."""

    def do_GET(self):
        body = {"/health": b"", "/v1/models": b'{"data": [{"id": "j"}]}'}.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


def test_servers_that_answer_are_good_and_each_that_does_not_is_named(server, tmp_path):
    c = config(tmp_path, "sampler.kind=vllm", f"sampler.urls={server},http://127.0.0.1:9",
               "judge.kind=server", "judge.model=j", f"judge.urls={server}/v1")
    found = list(run.servers(c))
    assert [f.verdict for f in found if f.name == "sampler"] == ["ok", "bad"]
    assert "http://127.0.0.1:9/health" in found[1].said
    assert by_name(found)["judge"].verdict == "ok"
    other = config(tmp_path, "judge.kind=server", "judge.model=k", f"judge.urls={server}/v1")
    assert "serves j, not k" in by_name(run.servers(other))["judge"].said


def test_a_run_without_servers_asks_for_none(tmp_path):
    assert list(run.servers(config(tmp_path))) == []
    assert config_lib.default().sampler.kind == "native"


def test_a_table_is_aligned_and_marks_what_is_to_be_fixed():
    text = findings.table([Finding("one", "a", "ok", "good"),
                           Finding("one", "long", "bad", "gone", "get it"),
                           Finding("two", "b", "note", "well")])
    assert text == ("one\n  ok    a     good\n  FAIL  long  gone\n              → get it\n\n"
                    "two\n  -     b     well")
