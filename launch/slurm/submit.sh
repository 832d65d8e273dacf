#!/usr/bin/env bash
# Submits a training to SLURM: trainer, vLLM servers and judge as one job. See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/slurm/submit.sh [OPTION]... [OPTION OF rime_jax.train]...

Submits one job for whole GPU nodes: the trainer (a process for each GPU) and, where asked for, vLLM
servers and a judge, as a heterogeneous job whose parts start and end together. A job that is
preempted or reaches its time limit saves and is queued again; one that has died starts again from
its newest checkpoint. The checkout must lie on a file system that all nodes share.

  launch/install.sh gpu        # once; for servers or a judge also launch/setup_vllm.sh, on a GPU node
  launch/slurm/submit.sh --nodes 2 --servers 1 --model /shared/Qwen3-4B --judge /shared/Qwen3-30B \\
    --sbatch --partition=gpu --sbatch --time=24:00:00 --config=experiments/alchemy/rime.py

  --nodes N        nodes that train; default 1
  --gpus N         GPUs of a node; default 8
  --servers N      nodes with vLLM servers; default 0: the trainer samples itself
  --server-gpus N  GPUs of a server; default 1
  --model DIR      with --servers: the model, for servers and trainer (a directory with config.json)
  --judge MODEL    a node that serves this judge under vLLM
  --sbatch OPTION  an option of sbatch for all parts; may be repeated
  --dry-run        print the command and submit nothing

Environment variables:
  RIME_VENV, RIME_VLLM_PYTHON, RIME_VLLM_VENV, RIME_VLLM_WAIT   as for launch/vllm_server.sh
EOF
}

# shellcheck source=launch/_commands.sh
. "$root/launch/_commands.sh"

nodes=1
gpus=8
servers=0
server_gpus=1
model=
judge=
sbatch=()
dry_run=
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      usage
      exit
      ;;
    --dry-run)
      dry_run=1
      shift
      continue
      ;;
    --nodes | --gpus | --servers | --server-gpus)
      [[ "${2-}" =~ ^(0|[1-9][0-9]{0,5})$ ]] || usage_error "$1 needs a whole number"
      name="${1#--}"
      printf -v "${name//-/_}" %s "$2"
      ;;
    --model | --judge)
      [ -n "${2-}" ] || usage_error "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      ;;
    --sbatch)
      [[ "${2-}" == -* ]] || usage_error "--sbatch needs an option of sbatch: --sbatch --time=24:00:00"
      sbatch+=("$2")
      ;;
    *) break ;;
  esac
  shift 2
done
need_training "--dry-run --nodes --gpus --servers --server-gpus --model --judge --sbatch" "$@"
[ "$nodes" -ge 1 ] && [ "$gpus" -ge 1 ] || usage_error "--nodes and --gpus must be at least 1"
if [ "$servers" -gt 0 ]; then
  [ -n "$model" ] || usage_error "--servers needs --model: the directory of the model they serve"
  [ -e "$model/config.json" ] || usage_error "--model $model is no model directory (no config.json)"
  if [ "$server_gpus" -lt 1 ] || [ $((gpus % server_gpus)) -ne 0 ]; then
    usage_error "--server-gpus $server_gpus does not divide --gpus $gpus"
  fi
  model="$(CDPATH='' cd -- "$model" && pwd -P)"
elif [ -n "$model" ]; then
  usage_error "--model is for --servers; the trainer's own is --set model.path=$model"
fi
venv="${RIME_VENV:-$root/.venv}"
[ -n "$dry_run" ] || [ -x "$venv/bin/python" ] ||
  usage_error "there is no environment in $venv; make it with launch/install.sh gpu (RIME_VENV: its" \
    "place)"
need_program sbatch "jobs are submitted on a login node of the cluster"

# part NODES TASKS: a part of the job, with all that its nodes have.
part() {
  printf '%s\n' "--nodes=$1" "--ntasks-per-node=$2" "--gpus-per-node=$gpus" --exclusive --mem=0 \
    ${sbatch[@]+"${sbatch[@]}"}
}

mapfile -t parts < <(part "$nodes" "$gpus")
if [ "$servers" -gt 0 ]; then
  mapfile -t -O "${#parts[@]}" parts < <(printf ':\n' && part "$servers" $((gpus / server_gpus)))
fi
if [ -n "$judge" ]; then
  # As the job starts in another directory; what is none is a name that vLLM can fetch.
  [ ! -d "$judge" ] || judge="$(CDPATH='' cd -- "$judge" && pwd -P)"
  mapfile -t -O "${#parts[@]}" parts < <(printf ':\n' && part 1 1)
fi

# The 120 s are for the rollouts to be given up and a checkpoint to be written.
act mkdir -p "$root/runs/slurm"
act sbatch --job-name=rime "--output=$root/runs/slurm/%j.log" --open-mode=append --requeue \
  --signal=B:TERM@120 "--chdir=$root" "${parts[@]}" "$root/launch/slurm/job.sh" \
  "$servers" "$gpus" "$server_gpus" "$model" "$judge" "$@"
