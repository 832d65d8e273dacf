"""launch/detached.sh: one command of a host that outlives the connection that started it."""

import pathlib
import subprocess
import time

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / "launch/detached.sh"

# Tells when it is up; saves at SIGTERM as a training does.
SAVES = "trap 'echo saved; exit 75' TERM; echo up; while true; do sleep 0.05; done"


@pytest.fixture
def host(tmp_path):
    def run(*arguments):
        done = subprocess.run([SCRIPT, *arguments], env={"RIME_DETACHED": str(tmp_path / "a b"),
                              "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout
    yield run
    run("stop")


def test_nothing_has_run_on_a_new_host(host):
    assert host("status") == "none\n"
    assert host("follow") == "" and host("stop") == ""


def test_a_command_outlives_its_start_and_is_followed_to_its_end(host):
    assert "started" in host("start", "bash", "-c", "sleep 1; echo 'a  b'; exit 7")
    assert host("status") == "running\n"
    assert host("follow").endswith("a  b\n")
    assert host("status") == "7\n"


def test_a_second_start_leaves_the_first_alone(host):
    host("start", "bash", "-c", SAVES)
    assert "already running" in host("start", "bash", "-c", "echo second")
    assert host("status") == "running\n"
    host("stop")
    assert "second" not in host("follow")


def test_stop_waits_until_the_command_has_saved(host, tmp_path):
    host("start", "bash", "-c", SAVES)
    while "up" not in (tmp_path / "a b/log").read_text():
        time.sleep(0.05)
    host("stop")
    assert "saved\n" in host("follow") and host("status") == "75\n"


def test_arguments_arrive_as_they_were(host):
    host("start", "printf", "[%s]", "a b", "'", '"', "$HOME", "*")
    assert host("follow") == "[a b]['][\"][$HOME][*]"
