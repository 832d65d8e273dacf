"""launch/gke: manifest and XPK's command as golden files; the manifest against its schemas.

A JobSet's own fields are compared with those of its CustomResourceDefinition (v1alpha2), written
down here; the Job inside of it with the Kubernetes OpenAPI, where kubernetes-validate is installed.
"""

import math
import re
import runpy
import shutil

import pytest
import yaml

from tests import launched

SUBMIT = launched.ROOT / "launch/gke/submit.sh"
RENDER = runpy.run_path(str(launched.ROOT / "launch/gke/render.py"))
JOB = {"JOB_NAME": "rime", "TPU_TYPE": "v5litepod-16", "IMAGE": "registry.example/rime_jax:1",
       "RIME_RUN_DIR": "/shared/runs/rime", "RIME_CLAIM": "runs", "XPK_CLUSTER": "ours",
       "XPK_ZONE": "us-west4-a", "XPK_PROJECT": "my-project"}
TRAINING = ["--config=experiments/alchemy/rime.py", "--set",
            "@launch/presets/qwen3-4b-v5e-16.txt"]
HOSTILE = ["name=it's \"so\" $HOME $(HOME) $$(HOME) $$ `id` * {a: b} # c\n- d", "x=ü"]


def dry_run(*arguments, **environment):
    return launched.run([SUBMIT, "--dry-run", *arguments], **JOB | environment)


DRY_RUNS = {
    "gke_jobset": (TRAINING, {}),
    "gke_jobset_spot": (["--spot", *TRAINING], {"TPU_TYPE": "v6e-64"}),
    "gke_xpk": (["--xpk", *TRAINING, "name=it's \"so\" $HOME *"], {"RIME_RUN_DIR": "/a b"}),
}


@pytest.mark.parametrize("name", DRY_RUNS)
def test_a_dry_run_prints_what_would_be_submitted(name):
    arguments, environment = DRY_RUNS[name]
    done = dry_run(*arguments, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    launched.check_golden(name, done.stdout)


def jobset(*arguments, **environment):
    return yaml.safe_load(dry_run(*arguments, **environment).stdout)


@pytest.mark.parametrize("arguments", [TRAINING, ["--spot", *TRAINING, *HOSTILE]])
def test_the_jobset_has_the_fields_of_its_definition(arguments):
    found = jobset(*arguments)
    assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(found["spec"]) <= {
        "coordinator", "failurePolicy", "managedBy", "network", "replicatedJobs", "startupPolicy",
        "successPolicy", "suspend", "ttlSecondsAfterFinished"}
    policy = found["spec"]["failurePolicy"]
    assert set(policy) <= {"maxRestarts", "restartStrategy", "rules"}
    for rule in policy["rules"]:
        assert {"action", "name"} <= set(rule) <= {
            "action", "name", "onJobFailureReasons", "targetReplicatedJobs"}
        assert rule["action"] in ("FailJobSet", "RestartJobSet",
                                  "RestartJobSetAndIgnoreMaxRestarts")
    (job,) = found["spec"]["replicatedJobs"]
    assert {"name", "template"} <= set(job) <= {
        "dependsOn", "groupName", "name", "replicas", "template"}
    assert set(job["template"]) <= {"metadata", "spec"}


@pytest.mark.parametrize("arguments", [TRAINING, ["--spot", *TRAINING, *HOSTILE]])
def test_the_job_inside_is_one_of_kubernetes(arguments):
    validate = pytest.importorskip("kubernetes_validate")
    (job,) = jobset(*arguments)["spec"]["replicatedJobs"]
    validate.validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "slice"},
                       **job["template"]}, "1.32", strict=True)


def test_a_status_of_75_restarts_all_and_is_not_counted():
    spec = jobset(*TRAINING)["spec"]
    (rule,) = spec["failurePolicy"]["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    codes, lost = job["podFailurePolicy"]["rules"]
    assert codes["action"] == lost["action"] == "FailJob"
    assert codes["onExitCodes"]["values"] == [75]
    assert codes["onExitCodes"]["containerName"] == job["template"]["spec"]["containers"][0]["name"]
    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"


def test_any_value_arrives_as_it_is():
    (job,) = jobset(*TRAINING, *HOSTILE, IMAGE="a: {b}")["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    variables = re.compile(r"\$(\$|\((.*?)\))")  # as Kubernetes reads them, from left to right
    command = [variables.sub(lambda found: found[2] or "$", word) for word in container["command"]]
    assert command == ["python", "-m", "rime_jax.train", "--coordinator", "auto", *TRAINING,
                       *HOSTILE, "--set", "run_dir=/shared/runs/rime"]
    assert container["image"] == "a: {b}"


@pytest.mark.parametrize("kind", ["v5litepod-16", "v5p-128", "v6e-64", "v5p-8", "v6e-256"])
def test_a_slice_has_a_pod_for_each_four_chips(kind):
    accelerator, topology, hosts = RENDER["slice_of"](kind)
    size = int(kind.split("-")[1])
    chips = size // 2 if "v5p" in accelerator else size
    assert math.prod(int(n) for n in topology.split("x")) == chips == 4 * hosts


@pytest.mark.parametrize(("arguments", "environment", "told"), [
    ([], {}, "begin with --config"),
    ([*TRAINING, "--spot"], {}, "--spot is an option of this script; it stands before --config"),
    *((TRAINING, {name: ""}, f"error: {name} is not set")
      for name in ("JOB_NAME", "TPU_TYPE", "IMAGE", "RIME_RUN_DIR", "RIME_CLAIM")),
    *((["--xpk", *TRAINING], {name: ""}, f"error: {name} is not set")
      for name in ("XPK_CLUSTER", "XPK_ZONE", "XPK_PROJECT")),
    (TRAINING, {"JOB_NAME": "Rime Run"}, "JOB_NAME=Rime Run: use lower-case"),
    (TRAINING, {"RIME_RUN_DIR": "/home/runs"}, "/home/runs is not in /shared"),
    (TRAINING, {"TPU_TYPE": "v9-8"}, "TPU_TYPE=v9-8 is none of v5litepod-4"),
])
def test_what_is_missing_or_wrong_is_named(arguments, environment, told):
    done = dry_run(*arguments, **environment)
    assert done.returncode != 0 and told in done.stderr and done.stdout == ""


def test_the_manifest_is_what_kubectl_gets(tmp_path):
    launched.program(tmp_path / "kubectl", '#!/bin/sh\necho "$@" >"$TOLD"\ncat >>"$TOLD"\n')
    done = launched.run([SUBMIT, *TRAINING], **JOB, TOLD=tmp_path / "told",
                        PATH=f"{tmp_path}:/usr/local/bin:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    first, _, manifest = (tmp_path / "told").read_text().partition("\n")
    assert first == "apply -f -" and manifest == dry_run(*TRAINING).stdout


def test_a_program_that_is_not_installed_is_named_before_anything_is_done(tmp_path):
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = launched.run([SUBMIT, *TRAINING], **JOB | {"PATH": str(tmp_path)})
    assert done.returncode == 2 and "kubectl is not installed" in done.stderr
