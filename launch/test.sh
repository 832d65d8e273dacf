#!/usr/bin/env bash
# Runs the tests; installs what they need first. Arguments go to pytest: launch/test.sh -k memory
# With --parity first it also installs torch, for the tests beside transformers' own models, and
# MkDocs, for the one that builds the site of docs/. With --coverage first (after --parity) it ends
# with a table of how much of each package the tests have run.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=launch/_setup.sh
. "$root/launch/_setup.sh"
kind="test"
if [ "${1-}" = --parity ]; then
  kind="parity"
  shift
fi
coverage=""
if [ "${1-}" = --coverage ]; then
  coverage="yes"
  shift
fi
ensure_venv "$kind"

cd "$root"
[ -n "$coverage" ] || exec "$venv/bin/python" -m pytest "$@"
status=0
"$venv/bin/python" -m coverage erase
"$venv/bin/python" -m coverage run -m pytest "$@" || status=$?
"$venv/bin/python" -m coverage combine --quiet
"$venv/bin/python" -m tests.coverage_table
exit "$status"
