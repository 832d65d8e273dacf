#!/usr/bin/env bash
# Starts a vLLM server that rollouts can use (sampler.kind = vllm). See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/vllm_server.sh [--port N] [--host ADDRESS] [--dry-run] MODEL [ARGUMENT OF vLLM]...

Serves MODEL, a model directory in Hugging Face layout, until Ctrl-C or SIGTERM stops it. Says
'ready' once the server answers. The first publish of a training run replaces its weights; MODEL
decides the architecture. On a machine without a GPU the server is set to float32, eager mode.

  launch/vllm_server.sh path/to/model
  launch/vllm_server.sh --port 8001 path/to/model --max-model-len 20480 --tensor-parallel-size 2

  --port N        default 8000
  --host ADDRESS  where it listens; default 127.0.0.1. Whoever reaches the port can replace the
                  weights: use an address of a private network only.
  --dry-run       prints the command and starts nothing

Environment variables:
  RIME_VLLM_PYTHON  the Python that has vLLM; default: the one of launch/setup_vllm.sh, which is
                    run first if need be (RIME_VLLM_VENV: its place)
  RIME_VLLM_WAIT    seconds to wait for the server to answer; default 900
EOF
}

# shellcheck source=launch/_commands.sh
. "$root/launch/_commands.sh"

port=8000
host=127.0.0.1
dry_run=
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      usage
      exit
      ;;
    --port | --host)
      [ $# -ge 2 ] || usage_error "$1 needs a value"
      if [ "$1" = --port ]; then port="$2"; else host="$2"; fi
      shift 2
      ;;
    --dry-run)
      dry_run=1
      shift
      ;;
    *) break ;;
  esac
done
if [ $# -lt 1 ]; then
  usage >&2
  exit 2
fi
model="$1"
shift
[ -e "$model/config.json" ] ||
  usage_error "$model is no model directory (it has no config.json)"
refuse_own "--dry-run --port --host" MODEL "$@"

# shellcheck source=launch/_server.sh
. "$root/launch/_server.sh"
if [ -n "$dry_run" ]; then find_vllm ""; else find_vllm install; fi

on_cpu=()
if ! nvidia-smi -L >/dev/null 2>&1; then
  # In bfloat16 the CPU build stops at short prompts and its log-probabilities are coarse. A request
  # with a seed ends its engine when the prompt is cut into chunks (0.32: `CPU Generator does not use
  # offset`).
  on_cpu=(--dtype float32 --enforce-eager --no-enable-chunked-prefill)
  export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
fi
# Token ids in and out (scale-out), log-probabilities at temperature 1 over the whole vocabulary
# (raw), no sampling defaults of the model's own (generation-config), and our reload of weights.
command=(
  "$python" -m vllm.entrypoints.openai.api_server
  --model "$model" --served-model-name rime --host "$host" --port "$port"
  --enable-scale-out --enable-prefix-caching --logprobs-mode raw_logprobs --generation-config vllm
  --worker-extension-cls rime_jax.sampler.vllm_worker.WorkerExtension
  ${on_cpu[@]+"${on_cpu[@]}"} "$@"
)
# Developer mode has the routes that pause, reload and resume.
export VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

if [ -n "$dry_run" ]; then
  printf '%q ' env VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 \
    ${VLLM_CPU_KVCACHE_SPACE:+"VLLM_CPU_KVCACHE_SPACE=$VLLM_CPU_KVCACHE_SPACE"} \
    "PYTHONPATH=$PYTHONPATH" "${command[@]}"
  printf '\n'
  exit
fi

serve "$python" "http://$host:$port/health" "${RIME_VLLM_WAIT:-900}" "ready: http://$host:$port" \
  "${command[@]}"
