#!/usr/bin/env bash
# What a job of launch/slurm/submit.sh does on its first node. SLURM starts a copy of this file, in
# the root of the checkout.
#
#   job.sh SERVER_NODES GPUS_OF_A_NODE GPUS_OF_A_SERVER MODEL JUDGE OPTION_OF_rime_jax.train...
set -euo pipefail

servers="$1" gpus="$2" server_gpus="$3" model="$4" judge="$5"
shift 5
root="$PWD"
python="${RIME_VENV:-$root/.venv}/bin/python"

# shellcheck source=launch/_child.sh
. "$root/launch/_child.sh"
# shellcheck source=launch/_server.sh
. "$root/launch/_server.sh"

main() {
  local settings=() trainer=()
  trap end_servers EXIT
  if [ "$servers" -gt 0 ] || [ -n "$judge" ]; then trainer=(--het-group=0); fi
  [ "$servers" -eq 0 ] || start_servers
  [ -z "$judge" ] || start_judge
  # One process a GPU finds the others by SLURM's variables. A task is not bound to one core.
  run_child "$root/launch/until_done.sh" "$root/launch/slurm/step.sh" ${trainer[@]+"${trainer[@]}"} --cpu-bind=none \
    --kill-on-bad-exit=1 "$python" -m rime_jax.train --coordinator auto "$@" \
    ${settings[@]+--set "${settings[@]}"}
  # shellcheck disable=SC2154  # run_child sets it
  finish "$status"
}

finish() {
  if [ "$1" -eq 75 ]; then
    printf 'The job was told to stop and is queued again\n'
    scontrol requeue "$SLURM_JOB_ID" ||
      printf 'error: it cannot be; the same launch/slurm/submit.sh goes on\n' >&2
  fi
  exit "$1"
}

background=()

# On every GPU, or every few of them, a server; one that dies is started again.
start_servers() {
  local urls='' node i exchange="$root/runs/slurm/$SLURM_JOB_ID.weights"
  # shellcheck disable=SC2016  # for the shell of each task
  srun --het-group=1 --cpu-bind=none bash -c '
    gpus="$1" root="$2"
    shift 2
    first=$((SLURM_LOCALID * gpus))
    CUDA_VISIBLE_DEVICES="$(seq -s, "$first" $((first + gpus - 1)))"
    export CUDA_VISIBLE_DEVICES
    exec "$root/launch/until_done.sh" --retries 10 "$root/launch/vllm_server.sh" \
      --host "$SLURMD_NODENAME" --port $((8000 + SLURM_LOCALID)) "$@"
  ' server "$server_gpus" "$root" "$model" --tensor-parallel-size "$server_gpus" &
  background+=("$!")
  while read -r node; do
    for ((i = 0; i < gpus / server_gpus; i++)); do urls+=",http://$node:$((8000 + i))"; done
  done < <(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_1")
  settings+=(sampler.kind=vllm "sampler.urls=${urls#,}" "sampler.exchange_dir=$exchange"
    "model.path=$model")
}

# The training does not start without a judge that answers.
start_judge() {
  local group=1 node nodes until
  [ "$servers" -eq 0 ] || group=2
  nodes="SLURM_JOB_NODELIST_HET_GROUP_$group"
  node="$(scontrol show hostnames "${!nodes}")"
  srun "--het-group=$group" --cpu-bind=none "$root/launch/until_done.sh" --retries 10 \
    "$root/launch/judge_server.sh" --vllm --name judge --host "$node" "$judge" \
    --tensor-parallel-size "$gpus" &
  background+=("$!")
  until=$((SECONDS + ${RIME_VLLM_WAIT:-900}))
  until answers "$python" "http://$node:8100/health"; do
    if ! kill -0 "${background[-1]}" 2>/dev/null || [ "$SECONDS" -ge "$until" ]; then
      printf 'error: the judge on %s does not answer; its messages are above\n' "$node" >&2
      exit 1
    fi
    [ "$signals" -eq 0 ] || finish 75
    sleep 5
  done
  settings+=(judge.kind=server "judge.urls=http://$node:8100/v1" judge.model=judge)
}

# shellcheck disable=SC2317,SC2329  # the trap invokes it
end_servers() {
  local pid
  for pid in ${background[@]+"${background[@]}"}; do kill -TERM "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$root/runs/slurm/$SLURM_JOB_ID.weights"
}

main "$@"
