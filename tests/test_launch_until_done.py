"""launch/until_done.sh: which endings of a command make it run it again."""

import pathlib
import signal
import subprocess
import time

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / "launch/until_done.sh"

# Ends with the next of the given statuses at each start, or dies by the signal -N.
PLAYS = """n=$(cat "$0" 2>/dev/null || echo 0); echo $((n + 1)) >"$0"
shift "$n"; case "$1" in -*) kill "$1" $$ ;; *) exit "$1" ;; esac"""


def play(tmp_path, statuses, *options):
    """(exit status, number of starts, what it said) of a command that ends with `statuses`."""
    count = tmp_path / "starts"
    done = subprocess.run(
        [SCRIPT, "--wait", "0", *options, "bash", "-c", PLAYS, count, *map(str, statuses)],
        capture_output=True, text=True, timeout=60)
    return done.returncode, int(count.read_text()), done.stderr


@pytest.mark.parametrize(("statuses", "ends", "starts"), [
    ([0], 0, 1),
    ([75, 75, 75, 75, 75, 0], 0, 6),
    ([1, 75, -9, 0], 0, 4),
    ([2, 0], 2, 1),
    ([1, 78, 0], 78, 2),
    ([1, -6, -9, 7, 0], 7, 4),
])
def test_it_runs_again_what_saved_without_limit_and_failures_three_times(
        tmp_path, statuses, ends, starts):
    assert play(tmp_path, statuses)[:2] == (ends, starts)


def test_it_says_what_happened_and_what_comes_next(tmp_path):
    _, _, said = play(tmp_path, [75, -9, 5], "--retries", "1")
    assert "has saved (status 75); again in 0 s\n" in said
    assert "status 137, failure 1 of 1 in a row; from the newest checkpoint again" in said
    assert "status 5, failure 2 in a row; that is the end" in said.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_command_and_its_status_is_the_end(number):
    command = "trap 'sleep 0.3; exit 75' TERM; echo up; while true; do sleep 0.05; done"
    process = subprocess.Popen(
        [SCRIPT, "bash", "-c", command], stdout=subprocess.PIPE, text=True,
        # A shell cannot trap what was ignored when it started.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    process.send_signal(number)
    assert process.wait(timeout=30) == 75


def test_a_command_that_was_told_to_stop_while_it_was_starting_may_be_started_again():
    process = subprocess.Popen([SCRIPT, "bash", "-c", "echo up; exec sleep 60"],
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 75


def test_a_signal_between_two_runs_ends_the_wait(tmp_path):
    process = subprocess.Popen([SCRIPT, "--wait", "600", "bash", "-c", "exit 1"],
                               stderr=subprocess.PIPE, text=True)
    assert "again in 600 s" in process.stderr.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 75


@pytest.mark.parametrize("arguments", [
    [], ["--retries"], ["--retries", "many", "true"], ["--again", "true"]])
def test_wrong_arguments_are_a_usage_error(arguments):
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr
