"""launch/slurm: what is submitted, as golden files, and the job on a cluster that is acted."""

import shutil
import signal
import subprocess
import time

import pytest

from tests import launched

SUBMIT = launched.ROOT / "launch/slurm/submit.sh"
TRAINING = ["--config=experiments/alchemy/rime.py", "--set", "steps=3"]


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    return tmp_path / "model"


PARTS = {
    "slurm_trainer": ["--nodes", "2", "--gpus", "4"],
    "slurm_all": ["--nodes", "2", "--servers", "3", "--server-gpus", "2", "--model", "MODEL",
                  "--judge", "Qwen/Qwen3-30B-A3B-Instruct-2507", "--sbatch", "--partition=gpu",
                  "--sbatch", "--comment=it's ours"],
    "slurm_judge": ["--judge", "Qwen/Qwen3-30B-A3B-Instruct-2507"],
}


@pytest.mark.parametrize("name", PARTS)
def test_a_dry_run_prints_what_would_be_submitted(name, model):
    options = [str(model) if word == "MODEL" else word for word in PARTS[name]]
    done = launched.run([SUBMIT, "--dry-run", *options, *TRAINING, "name=it's \"so\" $HOME *"])
    assert (done.returncode, done.stderr) == (0, "")
    launched.check_golden(name, done.stdout, ROOT=launched.ROOT, MODEL=model)


@pytest.mark.parametrize(("options", "told"), [
    (["--servers", "1"], "--servers needs --model"),
    (["--servers", "1", "--model", "/nowhere"], "/nowhere is no model directory"),
    (["--model", "/nowhere"], "--set model.path=/nowhere"),
    (["--nodes", "0"], "must be at least 1"),
    (["--gpus", "0"], "must be at least 1"),
    (["--gpus", "08"], "--gpus needs a whole number"),
    (["--gpus", "all"], "--gpus needs a whole number"),
    (["--nodes"], "--nodes needs a whole number"),
    (["--sbatch", "gpu"], "--sbatch needs an option of sbatch"),
    (["--partition=gpu"], "begin with --config, not with --partition=gpu"),
])
def test_wrong_options_are_told_before_anything_is_submitted(options, told):
    done = launched.run([SUBMIT, *options, *TRAINING])
    assert done.returncode == 2 and told in done.stderr and done.stdout == ""


def test_an_option_behind_those_of_the_training_is_not_handed_on_to_it():
    done = launched.run([SUBMIT, *TRAINING, "--nodes=2"])
    assert done.returncode == 2 and "--nodes is an option of this script" in done.stderr


def test_gpus_that_do_not_divide_into_servers_are_refused(model):
    done = launched.run([SUBMIT, "--servers", "1", "--server-gpus", "3", "--model", model,
                         *TRAINING])
    assert done.returncode == 2 and "--server-gpus 3 does not divide --gpus 8" in done.stderr


def test_an_environment_that_is_not_there_is_told(tmp_path):
    done = launched.run([SUBMIT, *TRAINING], RIME_VENV=tmp_path / "none")
    assert done.returncode == 2 and "launch/install.sh gpu" in done.stderr


def test_a_machine_without_slurm_is_told(tmp_path):
    launched.program(tmp_path / "venv/bin/python", "")
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = launched.run([SUBMIT, *TRAINING], PATH=tmp_path, RIME_VENV=tmp_path / "venv")
    assert done.returncode == 2 and "sbatch is not installed" in done.stderr


# ---------------------------------------------------------------------- a cluster that is acted

# Says what it is asked to do. A task that serves stays until it is told to end; the training takes
# its status from a file at each start, the last of which stays. With `wait` it stays, too: as the
# real one, srun kills it at SIGTERM, and only scancel lets it save; with `starting` it cannot yet.
SRUN = r"""#!/usr/bin/env bash
printf '<%s>' "$@" >>"$CLUSTER/did"; echo >>"$CLUSTER/did"
case "$*" in
  *rime_jax.train*)
    status="$(head -n 1 "$CLUSTER/statuses")"
    [ "$(wc -l <"$CLUSTER/statuses")" -eq 1 ] || sed -i 1d "$CLUSTER/statuses"
    case "$status" in
      wait) saves=75 ;;
      starting) saves=143 ;;
      *) exit "$status" ;;
    esac
    trap 'exit 137' TERM
    trap 'exit "$saves"' USR2
    echo "$$" >"$CLUSTER/training"
    while true; do sleep 0.05; done ;;
  *) trap 'echo "server ends" >>"$CLUSTER/did"; exit 0' TERM; while true; do sleep 0.05; done ;;
esac
"""
SCANCEL = r"""#!/usr/bin/env bash
echo "scancel $*" >>"$CLUSTER/did"
kill -USR2 "$(cat "$CLUSTER/training")"
"""
SCONTROL = r"""#!/usr/bin/env bash
case "$1" in
  show) case "$3" in servers*) printf 'n3\nn4\n' ;; *) echo n5 ;; esac ;;
  requeue) echo "requeue $2" >>"$CLUSTER/did" ;;
esac
"""
# Stands for the question whether the judge answers.
PYTHON = "#!/bin/sh\ncat >/dev/null; [ -e \"$CLUSTER/judge answers\" ]\n"


class Cluster:
    """The first node of a job."""

    def __init__(self, path):
        self.path, self.root = path, launched.checkout(path)
        script = self.root / "launch/until_done.sh"
        script.write_text(script.read_text().replace("\npause=10\n", "\npause=0\n"))
        for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("scontrol", SCONTROL)):
            launched.program(path / "bin" / name, text)
        launched.program(self.root / ".venv/bin/python", PYTHON)
        (path / "judge answers").touch()
        (path / "did").touch()

    def start(self, servers, judge, statuses, **environment):
        (self.path / "statuses").write_text("".join(f"{status}\n" for status in statuses))
        return subprocess.Popen(
            [self.root / "launch/slurm/job.sh", str(servers), "8", "4", "/a model", judge,
             *TRAINING], cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={"PATH": f"{self.path}/bin:/usr/bin:/bin", "CLUSTER": str(self.path),
                 "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST_HET_GROUP_1": "servers[3-4]",
                 "SLURM_JOB_NODELIST_HET_GROUP_2": "n5"} | environment)

    def did(self):
        return (self.path / "did").read_text().splitlines()


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def test_a_trainer_alone_is_one_step_of_the_job(cluster):
    process = cluster.start(0, "", [0])
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    python = cluster.root / ".venv/bin/python"
    words = ["--cpu-bind=none", "--kill-on-bad-exit=1", str(python), "-m", "rime_jax.train",
             "--coordinator", "auto", *TRAINING]
    assert cluster.did() == ["".join(f"<{word}>" for word in words)]


def test_the_training_knows_its_servers_and_its_judge_and_ends_them(cluster):
    process = cluster.start(2, "a judge", [0])
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    did = cluster.did()
    assert sorted(line.split(">")[0] for line in did if line[0] == "<") == [
        "<--het-group=0", "<--het-group=1", "<--het-group=2"]
    (training,) = (line for line in did if "rime_jax.train" in line)
    urls = ",".join(f"http://{node}:{port}" for node in ("n3", "n4") for port in (8000, 8001))
    for setting in ("sampler.kind=vllm", f"sampler.urls={urls}", "model.path=/a model",
                    f"sampler.exchange_dir={cluster.root}/runs/slurm/77.weights",
                    "judge.kind=server", "judge.urls=http://n5:8100/v1", "judge.model=judge"):
        assert f"<{setting}>" in training
    assert did.count("server ends") == 2


@pytest.mark.parametrize(("servers", "environment", "part", "state"), [
    (2, {"SLURM_HET_SIZE": "2"}, "77+0", "wait"), (0, {}, "77", "wait"), (0, {}, "77", "starting")])
def test_a_preempted_job_saves_and_is_queued_again(cluster, servers, environment, part, state):
    process = cluster.start(servers, "", [state], **environment)
    while not (cluster.path / "training").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert f"scancel --signal=TERM {part}" in cluster.did() and "requeue 77" in cluster.did()
    assert ("server ends" in cluster.did()) == (servers > 0)


def test_a_failure_is_tried_again_and_then_ends_the_job(cluster):
    process = cluster.start(0, "", [3])
    process.communicate(timeout=60)
    assert process.returncode == 3
    assert len(cluster.did()) == 4 and "requeue 77" not in cluster.did()


def test_a_judge_that_never_answers_ends_the_job(cluster):
    (cluster.path / "judge answers").unlink()
    process = cluster.start(0, "a judge", [0], RIME_VLLM_WAIT="0",
                            SLURM_JOB_NODELIST_HET_GROUP_1="n5")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "the judge on n5 does not answer" in said
    assert not any("rime_jax.train" in line for line in cluster.did())
