#!/usr/bin/env bash
# Makes the virtual environment of this machine, and says where it is. See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/install.sh [plain|test|parity|tpu|gpu]

Makes a virtual environment with rime_jax in it, within the versions of constraints.txt; a complete
one is left as it is.

  plain    the default: trains on CPUs
  test     and what the tests need
  parity   and torch, for the tests beside transformers
  tpu      for a TPU host
  gpu      for a host with NVIDIA GPUs

Environment variables: RIME_PYTHON, RIME_VENV, as for launch/local.sh.
EOF
}

# Several words are the name of no kind.
[ $# -le 1 ] || set -- "$*"
case "${1-plain}" in
  -h | --help) usage ;;
  plain | test | parity | tpu | gpu)
    # shellcheck source=launch/_setup.sh
    . "$root/launch/_setup.sh"
    ensure_venv "${1-plain}"
    printf 'rime_jax is in %s\n' "$venv"
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
