#!/usr/bin/env bash
# Trains on this machine; installs what it needs first. See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/local.sh [OPTION OF rime_jax.train]...

Trains the main experiment (experiments/alchemy/rime.py) on this machine. The first call makes a
virtual environment and installs rime_jax into it; later calls start at once. A run that was
stopped continues from its newest checkpoint.

  launch/local.sh                                                  the main experiment
  launch/local.sh --config=experiments/alchemy/writer_untrained.py another one
  launch/local.sh --set steps=20 --set run_dir=runs/short          with other settings

Arguments go to rime_jax.train; paths in them start at the repository. An experiment file runs in
its size for two cores, \`tiny\`, unless a size is written behind it (FILE.py:published).

Environment variables:
  RIME_PYTHON   the Python (3.11 or newer) to make the environment with; default: the first of
                python3, python3.13, python3.12, python3.11 that serves
  RIME_VENV     where the environment is; default: .venv in the repository
  XLA_FLAGS     default: two virtual CPU devices (one on a single core); sampling on one device
                keeps only about one core busy
  JAX_COMPILATION_CACHE_DIR  compiled programs; default: \${XDG_CACHE_HOME:-~/.cache}/rime_jax/xla
EOF
}

case "${1-}" in
  -h | --help)
    usage
    exit
    ;;
esac

# shellcheck source=launch/_setup.sh
. "$root/launch/_setup.sh"
ensure_venv plain

cd "$root"
arguments=()
for argument in --config=experiments/alchemy/rime.py "$@"; do
  file="${argument#--config=}"
  # An experiment whose get_config takes no size has one only.
  if [[ "$file" == *.py ]] && grep -q 'def get_config(size' -- "$file" 2>/dev/null; then
    argument+=:tiny
  fi
  arguments+=("$argument")
done

cores="$(getconf _NPROCESSORS_ONLN)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/rime_jax/xla"
export XLA_FLAGS="${XLA_FLAGS---xla_force_host_platform_device_count=$((cores < 2 ? cores : 2))}"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$cache}"

printf 'Runs are in %q; to look at their curves: %q --logdir %q\n' \
  "$root/runs" "$venv/bin/tensorboard" "$root/runs"
# exec: a signal to this script stops the training itself.
exec "$venv/bin/python" -m rime_jax.train "${arguments[@]}"
