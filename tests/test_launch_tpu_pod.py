"""launch/tpu_pod.sh: its commands as golden files, gcloud's own parser, and an acted cloud."""

import json
import shlex
import shutil
import subprocess

import pytest

from tests import launched

SCRIPT = launched.ROOT / "launch/tpu_pod.sh"
SLICE = {"TPU_NAME": "rime", "TPU_ZONE": "us-west4-a", "TPU_TYPE": "v5litepod-16",
         "RIME_RUN_DIR": "/shared/runs/rime", "TMPDIR": "/var/tmp"}
TRAINING = ["--config=experiments/alchemy/rime.py", "--set",
            "@launch/presets/qwen3-4b-v5e-16.txt"]
DRY_RUNS = {
    "tpu_pod": (["--dry-run", *TRAINING], {}),
    "tpu_pod_spot_with_setup": (["--spot", "--dry-run", *TRAINING], {
        "RIME_SETUP": "sudo mount '10.0.0.2:/runs' /shared", "TPU_PROJECT": "my-project"}),
    "tpu_pod_hostile": (["--dry-run", *TRAINING, "name=it's \"so\" $HOME `id` *"],
                        {"RIME_RUN_DIR": "/a b/it's"}),
    "tpu_pod_list": (["--dry-run", "--list"], {}),
    "tpu_pod_logs": (["--logs", "3", "--dry-run"], {}),
    "tpu_pod_delete": (["--delete", "--dry-run"], {}),
}


@pytest.mark.parametrize("name", DRY_RUNS)
def test_a_dry_run_prints_the_commands(name):
    arguments, environment = DRY_RUNS[name]
    done = launched.run([SCRIPT, *arguments], **SLICE | environment)
    assert (done.returncode, done.stderr) == (0, "")
    launched.check_golden(name, done.stdout, ROOT=launched.ROOT)


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_knows_all_of_our_commands_and_flags(tmp_path):
    lines = [line for name in DRY_RUNS
             for line in (launched.GOLDEN / f"{name}.txt").read_text().splitlines()]
    # Its checker reads a remote command as more flags.
    words = {tuple("--command=true" if word.startswith("--command=") else word
                   for word in shlex.split(line))
             for line in lines if line.startswith("gcloud")}
    fullest = {command[:5]: command for command in sorted(words, key=len)}
    for command in fullest.values():
        done = subprocess.run(
            ["gcloud", "meta", "lint-gcloud-commands", f"--command-string={shlex.join(command)}"],
            capture_output=True, text=True,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path),
                 "CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"})
        (found,) = json.loads(done.stdout)
        assert found["success"], found["error_message"]


@pytest.mark.parametrize("absent", ["TPU_NAME", "TPU_ZONE", "TPU_TYPE", "RIME_RUN_DIR"])
def test_a_variable_that_is_not_set_is_named(absent):
    done = launched.run([SCRIPT, "--dry-run", *TRAINING], **SLICE | {absent: ""})
    assert done.returncode == 2 and done.stderr.startswith(f"error: {absent} is not set; it is ")


@pytest.mark.parametrize(("arguments", "environment", "told"), [
    (["--sopt", *TRAINING], {}, "begin with --config, not with --sopt"),
    ([], {}, "begin with --config, not with nothing"),
    (["--delete", "now"], {}, "--delete takes no now"),
    (["--logs", "first"], {}, "--logs first: a worker is a number"),
    (TRAINING, {"TPU_TYPE": "v9-8"}, "TPU_RUNTIME is not set, and TPU_TYPE=v9-8"),
    (TRAINING, {"TPU_NAME": "a/../b"}, "TPU_NAME=a/../b: use lower-case"),
    (TRAINING, {"RIME_RUN_DIR": "runs/rime"}, "RIME_RUN_DIR=runs/rime is no path from the root"),
    ([*TRAINING, "--dry-run"], {}, "--dry-run is an option of this script; it stands before"),
    (["--config"], {}, "--config : no such file"),
    (["--config=experiments/rmie.py:tiny,steps=3"], {}, "--config experiments/rmie.py: no such"),
    ([*TRAINING[:2], "@launch/presets/v9.txt"], {}, "@launch/presets/v9.txt: no such file"),
])
def test_wrong_arguments_end_before_anything_is_asked_for(arguments, environment, told):
    done = launched.run([SCRIPT, *arguments], **SLICE | environment)
    assert done.returncode == 2 and told in done.stderr


def test_help_needs_nothing():
    done = launched.run([SCRIPT, "--help"])
    assert done.returncode == 0 and "TPU_TYPE" in done.stdout


# ---------------------------------------------------------------------- a cloud that is acted

# States are taken from a file, one at each question; commands for hosts run in a directory.
GCLOUD = r"""#!/usr/bin/env bash
printf '%s\n' "$3 $4" >>"$CLOUD/calls"
case "$*" in
  *" describe "*)
    state="$(head -n 1 "$CLOUD/states")"
    [ "$(wc -l <"$CLOUD/states")" -eq 1 ] || sed -i 1d "$CLOUD/states"
    [ "$state" != ABSENT ] || { echo 'ERROR: NOT_FOUND: Resource' >&2; exit 1; }
    echo "$state" ;;
  *" scp "*) cp "$5" "$CLOUD/host/rime_jax.tgz" ;;
  *" ssh "*)
    for word; do case "$word" in --command=*)
      cd "$CLOUD/host" && HOME="$PWD" exec bash -c "${word#--command=}" ;;
    esac; done ;;
esac
"""

# Each training takes its exit status from a file, the last of which stays.
PYTHON = r"""#!/usr/bin/env bash
case "$*" in
  -c*) echo 3.11 ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip "*) echo "pip ${*: -1}" >>"$CLOUD/did" ;;
  "-m rime_jax.train "*)
    printf '<%s>' "$@" >>"$CLOUD/did"; echo >>"$CLOUD/did"
    status="$(head -n 1 "$CLOUD/statuses")"
    [ "$(wc -l <"$CLOUD/statuses")" -eq 1 ] || sed -i 1d "$CLOUD/statuses"
    echo "training says $status"; exit "$status" ;;
esac
"""


@pytest.fixture
def cloud(tmp_path):
    root = launched.checkout(tmp_path)
    script = root / "launch/until_done.sh"
    script.write_text(script.read_text().replace("\npause=10\n", "\npause=0\n"))
    launched.program(tmp_path / "bin/gcloud", GCLOUD)
    launched.program(tmp_path / "bin/python3.11", PYTHON)
    (tmp_path / "host").mkdir()

    def train(*arguments, states, statuses=(0,), **environment):
        (tmp_path / "states").write_text("".join(f"{state}\n" for state in states))
        (tmp_path / "statuses").write_text("".join(f"{status}\n" for status in statuses))
        (tmp_path / "calls").write_text("")
        (tmp_path / "did").write_text("")
        done = launched.run(
            [root / "launch/tpu_pod.sh", *arguments],
            **SLICE | {"TMPDIR": tmp_path, "CLOUD": tmp_path, "RIME_POLL_S": 0,
                       "PATH": f"{tmp_path}/bin:/usr/local/bin:/usr/bin:/bin"} | environment)
        return done, *((tmp_path / name).read_text().splitlines() for name in ("calls", "did"))
    return train


def test_a_run_goes_from_nothing_to_its_end(cloud, tmp_path):
    # git still lists it, and the hosts do without.
    subprocess.run(["git", "-C", tmp_path / "a clone", "add", "."], check=True)
    (tmp_path / "a clone/launch/test.sh").unlink()
    done, calls, did = cloud(*TRAINING, "a=it's \"so\" $HOME *", states=[
        "ABSENT", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"],
        RIME_SETUP=f"touch '{tmp_path}/set up'", RIME_RUN_DIR="/a b/it's")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "training says 0" in done.stdout and "The run has finished" in done.stdout
    assert [c for c in calls if c.startswith("queued")] == [
        "queued-resources describe", "queued-resources create", *["queued-resources describe"] * 3]
    assert (tmp_path / "set up").exists()
    assert did[0].endswith("rime_jax[tpu]")
    words = ["-m", "rime_jax.train", "--coordinator", "auto", *TRAINING, "a=it's \"so\" $HOME *",
             "--set", "run_dir=/a b/it's"]
    assert did[1] == "".join(f"<{word}>" for word in words)


def test_a_slice_that_was_taken_away_is_asked_for_again(cloud):
    done, calls, did = cloud(*TRAINING, states=["SUSPENDED", "CREATING", "ACTIVE"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert [c for c in calls if c.startswith("queued")] == [
        "queued-resources describe", "queued-resources delete", "queued-resources create",
        *["queued-resources describe"] * 2]


def test_a_slice_that_is_up_is_used_as_it_is_and_a_stopped_run_starts_again(cloud):
    done, calls, did = cloud(*TRAINING, states=["ACTIVE"], statuses=[75, 0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "queued-resources create" not in calls
    assert len([line for line in did if "rime_jax.train" in line]) == 2


def test_a_run_that_fails_for_good_ends_with_its_log(cloud):
    done, _, did = cloud(*TRAINING, states=["ACTIVE"], statuses=[3])
    assert done.returncode == 3 and "training says 3" in done.stdout
    assert "error: the run ended with status 3" in done.stderr
    assert len([line for line in did if "rime_jax.train" in line]) == 4


def test_a_host_that_cannot_be_set_up_ends_the_attempts(cloud):
    done, calls, did = cloud(*TRAINING, states=["ACTIVE"], RIME_SETUP="echo no such disk; exit 32")
    assert done.returncode == 1 and "no such disk" in done.stdout
    assert "cannot be started there" in done.stderr and did == []


def test_a_slice_that_someone_deletes_is_not_asked_for_again(cloud):
    done, calls, _ = cloud(*TRAINING, states=["ACTIVE", "DELETING"], RIME_SETUP="false")
    assert done.returncode == 1 and "rime is being deleted" in done.stderr
    assert "queued-resources create" not in calls


def test_an_answer_that_is_no_state_is_shown(cloud, tmp_path):
    launched.program(tmp_path / "bin/gcloud", "#!/bin/sh\necho 'log in first' >&2; exit 1\n")
    done, _, did = cloud(*TRAINING, states=["ACTIVE"])
    assert done.returncode == 1 and "error: log in first" in done.stderr and did == []


def test_a_program_that_is_not_installed_is_named_before_anything_is_done(tmp_path):
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = launched.run([SCRIPT, *TRAINING], **SLICE | {"PATH": str(tmp_path)})
    assert done.returncode == 2 and "gcloud is not installed" in done.stderr
