#!/usr/bin/env bash
# Starts a judge that trainings ask over HTTP (judge.kind = server). See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/judge_server.sh [OPTION]... MODEL [ARGUMENT OF THE SERVER]...

Serves a judge until Ctrl-C or SIGTERM stops it. Says 'ready', and with which options a training
asks it, once it answers.

  launch/judge_server.sh path/to/model                    a small model, on this machine's devices
  launch/judge_server.sh --vllm Qwen/Qwen3-30B-A3B-Instruct-2507 --tensor-parallel-size 2
                                                          a large one, under vLLM
  launch/judge_server.sh lexical --config=experiments/alchemy/rime.py
                                                          the lexical judge, to try things out

  --vllm          MODEL runs under vLLM: a directory or a name that vLLM can fetch
  --name NAME     what trainings call it (judge.model); default: the last part of MODEL
  --port N        default 8100
  --host ADDRESS  where it listens; default 127.0.0.1. Whoever reaches the port can use it.
  --dry-run       prints the command and starts nothing

Arguments behind MODEL go to the server: rime_jax.judge.serve (see its --help), or vLLM.

Environment variables:
  RIME_PYTHON, RIME_VENV  as for launch/local.sh
  RIME_VLLM_PYTHON        the Python that has vLLM; default: the one of launch/setup_vllm.sh, which
                          is run first if need be (RIME_VLLM_VENV: its place)
  RIME_VLLM_WAIT          seconds to wait for vLLM to answer; default 900
EOF
}

# shellcheck source=launch/_commands.sh
. "$root/launch/_commands.sh"

port=8100
host=127.0.0.1
name=
vllm=
dry_run=
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      usage
      exit
      ;;
    --port | --host | --name)
      [ $# -ge 2 ] || usage_error "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    --vllm)
      vllm=1
      shift
      ;;
    --dry-run)
      dry_run=1
      shift
      ;;
    -*) usage_error "no such option: $1; arguments of the server stand behind MODEL" ;;
    *) break ;;
  esac
done
[ $# -ge 1 ] || {
  usage >&2
  exit 2
}
model="${1%/}"
shift
name="${name:-${model##*/}}"
refuse_own "--dry-run --vllm --name --port --host" MODEL "$@"
[ "$model" != lexical ] || [ -z "$vllm" ] || usage_error "the lexical judge is no model for vLLM"
[ "$model" = lexical ] || [ -n "$vllm" ] || [ -e "$model/config.json" ] ||
  usage_error "$model is no model directory (it has no config.json)"

if [ -n "$vllm" ]; then
  # shellcheck source=launch/_server.sh
  . "$root/launch/_server.sh"
  if [ -n "$dry_run" ]; then find_vllm ""; else find_vllm install; fi
  on_cpu=()
  if ! nvidia-smi -L >/dev/null 2>&1; then
    # In bfloat16 the CPU build stops at short prompts.
    on_cpu=(--dtype float32 --enforce-eager)
    VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
  fi
  # No sampling defaults of the model's own: a judge is asked at temperature 0, and means it.
  command=(
    env VLLM_NO_USAGE_STATS=1
    ${VLLM_CPU_KVCACHE_SPACE:+"VLLM_CPU_KVCACHE_SPACE=$VLLM_CPU_KVCACHE_SPACE"}
    "$python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name "$name"
    --host "$host" --port "$port" --generation-config vllm ${on_cpu[@]+"${on_cpu[@]}"} "$@"
  )
else
  # shellcheck source=launch/_setup.sh
  . "$root/launch/_setup.sh"
  [ -n "$dry_run" ] || ensure_venv plain
  command=(
    "$venv/bin/python" -m rime_jax.judge.serve --model "$model" --name "$name" --host "$host"
    --port "$port" "$@"
  )
fi

if [ -n "$dry_run" ]; then
  printf '%q ' "${command[@]}"
  printf '\n'
elif [ -n "$vllm" ]; then
  serve "$python" "http://$host:$port/health" "${RIME_VLLM_WAIT:-900}" \
    "ready: judge.urls=http://$host:$port/v1 judge.model=$name" "${command[@]}"
else
  # It says itself when it is ready. exec: a signal to this script stops the server.
  exec "${command[@]}"
fi
