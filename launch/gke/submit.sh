#!/usr/bin/env bash
# Submits a training to GKE: as a JobSet, or through XPK. See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/gke/submit.sh [--xpk] [--spot] [--dry-run] [OPTION OF rime_jax.train]...

Trains on a TPU slice of a GKE cluster, a pod on each host. Without --xpk it applies
launch/gke/jobset.yaml (the cluster needs JobSet 0.6 or newer); with it, XPK makes the JobSet. A run
that is preempted saves and starts again from its checkpoint; so does one that has died.

  JOB_NAME=rime TPU_TYPE=v6e-64 IMAGE=REGISTRY/rime_jax RIME_RUN_DIR=/shared/runs/rime \\
    RIME_CLAIM=runs launch/gke/submit.sh --config=experiments/codebase/rime.py \\
    --set @launch/presets/codebase-v6e-64.txt

  kubectl logs -f -l jobset.sigs.k8s.io/jobset-name=rime        what it prints
  kubectl delete jobset rime                                    let it save, and end it

  --xpk        by \`xpk workload create\`
  --spot       on nodes that may be taken away; with --xpk the cluster's capacity decides
  --dry-run    print the manifest or the command and submit nothing

Environment variables:
  JOB_NAME       lower-case letters, digits and '-'
  TPU_TYPE       v5litepod-16, v5p-128, v6e-64, ...
  IMAGE          made from launch/Containerfile.trainer with EXTRA=tpu
  RIME_RUN_DIR   the run directory, on a file system that all pods share; begins with /shared/
                 unless --xpk
  RIME_CLAIM     the PersistentVolumeClaim (ReadWriteMany) that is mounted at /shared
  XPK_CLUSTER, XPK_ZONE, XPK_PROJECT    with --xpk, instead of RIME_CLAIM: \`xpk storage attach\`
                 says where storage is mounted
EOF
}

# shellcheck source=launch/_commands.sh
. "$root/launch/_commands.sh"

dry_run=
spot=
xpk=
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      usage
      exit
      ;;
    --dry-run) dry_run=1 ;;
    --spot) spot=1 ;;
    --xpk) xpk=1 ;;
    *) break ;;
  esac
  shift
done
need_training "--dry-run --spot --xpk" "$@"
need JOB_NAME "the name of the job"
[[ "$JOB_NAME" =~ ^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$ ]] ||
  usage_error "JOB_NAME=$JOB_NAME: use lower-case letters, digits and '-', at most 40, a letter first"
need TPU_TYPE "the accelerator type, such as v5litepod-16"
need IMAGE "the container image of the trainer"
need RIME_RUN_DIR "the run directory, on a file system that all pods share"

training=(python -m rime_jax.train --coordinator auto "$@" --set "run_dir=$RIME_RUN_DIR")
if [ -n "$xpk" ]; then
  need XPK_CLUSTER "the cluster's name"
  need XPK_ZONE "the cluster's zone"
  need XPK_PROJECT "the cluster's project"
  need_program xpk "pip install xpk"
  # 75: it has saved. 1: a failure, perhaps for a companion that was lost. XPK adds deaths by signal.
  act xpk workload create "--cluster=$XPK_CLUSTER" "--zone=$XPK_ZONE" "--project=$XPK_PROJECT" \
    "--workload=$JOB_NAME" "--tpu-type=$TPU_TYPE" "--docker-image=$IMAGE" --max-restarts=30 \
    --restart-on-exit-codes=1,75 --termination-grace-period-seconds=120 \
    "--command=$(quoted "${training[@]}")"
  exit
fi
need RIME_CLAIM "the PersistentVolumeClaim that is mounted at /shared"
[[ "$RIME_RUN_DIR" == /shared/* ]] ||
  usage_error "RIME_RUN_DIR=$RIME_RUN_DIR is not in /shared, where RIME_CLAIM is mounted"
need_program kubectl "gcloud components install kubectl"
manifest="$(python3 "$root/launch/gke/render.py" "$JOB_NAME" "$TPU_TYPE" "$IMAGE" "$RIME_CLAIM" \
  "$spot" "${training[@]}")"
if [ -n "$dry_run" ]; then
  printf '%s\n' "$manifest"
else
  kubectl apply -f - <<<"$manifest"
fi
