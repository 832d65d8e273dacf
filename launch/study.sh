#!/usr/bin/env bash
# Makes the study of docs/study.md on this machine; installs what it needs first. See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/study.sh [--quick] [--settings NAME,...] [--cells NAME,...] [--out DIR] [--jobs N]
                       [--dry-run]

Makes the study of docs/study.md, or a part of it: warm starts, runs, evaluations, tables. What is
done is skipped; Ctrl-C and SIGTERM let the running command save and end with status 75, and the
same command goes on.

  launch/study.sh --quick                    one seed of the four main cells: under 40 minutes
  launch/study.sh --settings eased --cells rime,actor_only
  launch/study.sh                            all of it: half a day on two cores

  --quick         eased setting, shipped warm start, seed 0, the main cells
  --settings ...  some of the settings (default: all; rime_jax/study/plan.py has them)
  --cells ...     some of the cells (default: all)
  --out DIR       where everything goes; default: runs/study
  --jobs N        runs at a time; default: one for two cores
  --dry-run       prints the exact commands, and what is done, and runs none

The tables at the end are those of DIR, beside the recorded numbers; docs/study.md stays as it is.
Environment variables: RIME_PYTHON, RIME_VENV, XLA_FLAGS, JAX_COMPILATION_CACHE_DIR, as for
launch/local.sh.
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
cores="$(getconf _NPROCESSORS_ONLN)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/rime_jax/xla"
export XLA_FLAGS="${XLA_FLAGS---xla_force_host_platform_device_count=$((cores < 2 ? cores : 2))}"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$cache}"
# exec: a signal to this script stops the study itself.
exec "$venv/bin/python" -m rime_jax.study "$@"
