#!/usr/bin/env bash
# Runs the tests; installs what they need first. Arguments go to pytest: launch/test.sh -k memory
# With --parity first it also installs torch, for the tests beside transformers' own models, and
# MkDocs, for the one that builds the site of docs/.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=launch/_setup.sh
. "$root/launch/_setup.sh"
kind="test"
if [ "${1-}" = --parity ]; then
  kind="parity"
  shift
fi
ensure_venv "$kind"

cd "$root"
exec "$venv/bin/python" -m pytest "$@"
