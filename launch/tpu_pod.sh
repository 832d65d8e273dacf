#!/usr/bin/env bash
# Trains on a Cloud TPU slice: asks for it, installs, runs on all hosts, follows. See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/tpu_pod.sh [--spot] [--dry-run] [OPTION OF rime_jax.train]...
       launch/tpu_pod.sh [--dry-run] --list | --logs [WORKER] | --delete

Asks for a slice as a queued resource, or takes the one of that name; copies this checkout to all of
its hosts, installs there, trains in one process a host, and follows the log of the first. A spot
slice that is taken away is asked for again, and the run goes on from its newest checkpoint. The
training does not need this script once it runs: after Ctrl-C the same command follows it again.

  TPU_NAME=rime TPU_ZONE=us-west4-a TPU_TYPE=v5litepod-16 RIME_RUN_DIR=/shared/runs/rime \\
    RIME_SETUP='sudo mkdir -p /shared && sudo mount 10.0.0.2:/runs /shared' launch/tpu_pod.sh --spot \\
    --config=experiments/alchemy/rime.py --set @launch/presets/qwen3-4b-v5e-16.txt

  --spot         ask for capacity that may be taken away
  --list         queued resources of the zone
  --logs [N]     follow the log of worker N (default 0)
  --delete       let the run save, then give the slice back
  --dry-run      print the commands and run none; those of a name that is not there yet

Environment variables:
  TPU_NAME       name of the queued resource and of its node
  TPU_ZONE       its zone
  TPU_TYPE       accelerator type: v5litepod-16, v5p-128, v6e-64, ...
  RIME_RUN_DIR   the run directory, on a file system that all hosts share
  RIME_SETUP     a command that every host runs before the installation, such as a mount
  TPU_RUNTIME    software of the hosts; default: the one that goes with TPU_TYPE
  TPU_PROJECT    default: the project of gcloud
  RIME_POLL_S    seconds between two looks at what is waited for; default: 30
EOF
}

# shellcheck source=launch/_commands.sh
. "$root/launch/_commands.sh"

# Between two looks at the queue, and before a connection that broke is tried again.
poll_s="${RIME_POLL_S:-30}"

# That in a row the hosts may be out of reach although the slice is up.
patience=5

# For what is shown where the output is read.
exec 3>&1

action=train
dry_run=
spot=()
worker=0
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      usage
      exit
      ;;
    --dry-run) dry_run=1 ;;
    --spot) spot=(--spot) ;;
    --list | --delete) action="${1#--}" ;;
    --logs)
      action=logs
      if [ $# -gt 1 ] && [[ "$2" != -* ]]; then
        [[ "$2" =~ ^[0-9]+$ ]] || usage_error "--logs $2: a worker is a number from 0"
        worker="$2"
        shift
      fi
      ;;
    *) break ;;
  esac
  shift
done
if [ "$action" != train ] && [ $# -gt 0 ]; then
  usage_error "--$action takes no $1; options of this script stand before those of the training"
fi

need TPU_ZONE "the zone of the slice, such as us-west4-a"
scope=("--zone=$TPU_ZONE" ${TPU_PROJECT:+"--project=$TPU_PROJECT"})

main() {
  [ "$action" = train ] || need_gcloud
  if [ "$action" = list ]; then
    act gcloud compute tpus queued-resources list "${scope[@]}"
    return
  fi
  need TPU_NAME "the name of the queued resource"
  [[ "$TPU_NAME" =~ ^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$ ]] ||
    usage_error "TPU_NAME=$TPU_NAME: use lower-case letters, digits and '-', a letter first"
  case "$action" in
    logs) on_host "$worker" launch/detached.sh follow ;;
    delete) delete ;;
    train)
      need TPU_TYPE "the accelerator type, such as v5litepod-16"
      need RIME_RUN_DIR "the run directory, on a file system that all hosts share"
      [[ "$RIME_RUN_DIR" == /* ]] ||
        usage_error "RIME_RUN_DIR=$RIME_RUN_DIR is no path from the root, such as /shared/runs/rime"
      runtime="${TPU_RUNTIME:-$(runtime_of "$TPU_TYPE")}"
      [ -n "$runtime" ] || usage_error "TPU_RUNTIME is not set, and TPU_TYPE=$TPU_TYPE is none that" \
        "this script knows the software of (v5litepod-*, v5p-*, v6e-*, v4-*)"
      train "$@"
      ;;
  esac
}

need_gcloud() {
  need_program gcloud "see cloud.google.com/sdk/docs/install; --dry-run does without"
}

runtime_of() {
  case "$1" in
    v5litepod-*) printf 'v2-alpha-tpuv5-lite' ;;
    v5p-*) printf 'v2-alpha-tpuv5' ;;
    v6e-*) printf 'v2-alpha-tpuv6e' ;;
    v4-*) printf 'tpu-ubuntu2204-base' ;;
  esac
}

train() {
  local ended lost=0
  need_training "--dry-run --spot --list --logs --delete" "$@"
  need_gcloud
  while [ "$lost" -lt "$patience" ]; do
    provision
    # Code and environment of a run that is under way stay as they are.
    if [ "$(status_of)" = running ] || { install && start "$@"; }; then
      on_host 0 launch/detached.sh follow || true
    fi
    [ -z "$dry_run" ] || return 0
    ended="$(status_of)"
    case "$ended" in
      0)
        printf 'The run has finished; launch/tpu_pod.sh --delete gives the slice back\n'
        return
        ;;
      # 75: see launch/until_done.sh, which does not end with it unless its host does.
      75 | running) lost=0 ;;
      none | unreachable | '') lost=$((lost + 1)) ;;
      *)
        printf 'error: the run ended with status %s; its log is above, that of another worker: %s.\n%s\n' \
          "$ended" 'launch/tpu_pod.sh --logs N' \
          'The slice is still yours; launch/tpu_pod.sh --delete gives it back' >&2
        exit "$ended"
        ;;
    esac
    printf 'The connection or the slice was lost; looking again in %s s\n' "$poll_s"
    sleep "$poll_s"
  done
  printf 'error: %s is up, and the run cannot be started there; the messages above say why\n' \
    "$TPU_NAME" >&2
  exit 1
}

# Returns when the slice is up. Asks for it at the first call, or when it was taken away; one that
# someone has deleted since then is not asked for again.
asked=
provision() {
  local state
  while true; do
    state="$(state_of)"
    case "$state" in
      ABSENT)
        [ -z "$asked" ] || {
          printf 'error: %s was deleted\n' "$TPU_NAME" >&2
          exit 1
        }
        create
        ;;
      ACTIVE) ;;
      SUSPENDED | FAILED)
        act gcloud compute tpus queued-resources delete "$TPU_NAME" "${scope[@]}" --force --quiet
        create
        ;;
      DELETING)
        [ -z "$asked" ] || {
          printf 'error: %s is being deleted\n' "$TPU_NAME" >&2
          exit 1
        }
        ;;
    esac
    [ "$state" != DELETING ] && asked=1
    [ "$state" != ACTIVE ] && [ -z "$dry_run" ] || return 0
    printf '%s %s: %s; looking again in %s s\n' "$(date '+%F %T')" "$TPU_NAME" "$state" "$poll_s"
    sleep "$poll_s"
  done
}

create() {
  act gcloud compute tpus queued-resources create "$TPU_NAME" "--node-id=$TPU_NAME" "${scope[@]}" \
    "--accelerator-type=$TPU_TYPE" "--runtime-version=$runtime" ${spot[@]+"${spot[@]}"}
}

# Prints the state of the queued resource, or ABSENT.
state_of() {
  local told
  local command=(gcloud compute tpus queued-resources describe "$TPU_NAME" "${scope[@]}"
    '--format=value(state.state)')
  if [ -n "$dry_run" ]; then
    show "${command[@]}" >&3
    printf 'ABSENT'
  elif told="$("${command[@]}" 2>&1)"; then
    printf '%s' "${told##*$'\n'}"
  elif [[ "$told" == *NOT_FOUND* ]]; then
    printf 'ABSENT'
  else
    printf 'error: %s\n' "$told" >&2
    exit 1
  fi
}

# The images of Cloud TPU have an older Python.
on_image='{ command -v python3.11 >/dev/null || sudo apt-get install -y python3.11-venv; } && '
on_image+='RIME_PYTHON=python3.11 rime_jax/launch/install.sh tpu'

install() {
  local archive="${TMPDIR:-/tmp}/rime_jax_$TPU_NAME.tgz" setup=
  [ -z "${RIME_SETUP-}" ] || setup="$(quoted bash -ec "$RIME_SETUP") && "
  # What git does not ignore, changes that are not committed included; it lists deleted files, too.
  # shellcheck disable=SC2016  # for the inner shell
  act bash -c 'set -o pipefail; cd "$1" && git ls-files -z --cached --others --exclude-standard |'\
' while IFS= read -r -d "" file; do [ ! -e "$file" ] || printf "%s\0" "$file"; done |'\
' tar --null --files-from=- -czf "$2"' pack "$root" "$archive" &&
    act gcloud compute tpus tpu-vm scp "$archive" "$TPU_NAME:rime_jax.tgz" "${scope[@]}" \
      --worker=all &&
    ssh_to all "${setup}mkdir -p rime_jax && tar -xzf rime_jax.tgz -C rime_jax && $on_image"
}

start() {
  on_host all launch/detached.sh start launch/until_done.sh .venv/bin/python -m rime_jax.train \
    --coordinator auto "$@" --set "run_dir=$RIME_RUN_DIR"
}

# What launch/detached.sh says on the first host, or unreachable.
status_of() {
  local told
  if [ -n "$dry_run" ]; then
    printf 'none'
  elif told="$(on_host 0 launch/detached.sh status 2>/dev/null)"; then
    printf '%s' "${told##*$'\n'}"
  else
    printf 'unreachable'
  fi
}

delete() {
  on_host 0 launch/detached.sh stop ||
    printf 'The hosts cannot be reached; the newest checkpoint is what there is\n'
  act gcloud compute tpus queued-resources delete "$TPU_NAME" "${scope[@]}" --force --quiet
}

# on_host WORKER COMMAND...: in the checkout there.
on_host() {
  local worker="$1"
  shift
  ssh_to "$worker" "cd rime_jax && $(quoted "$@")"
}

ssh_to() {
  act gcloud compute tpus tpu-vm ssh "$TPU_NAME" "${scope[@]}" "--worker=$1" "--command=$2"
}

main "$@"
