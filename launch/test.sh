#!/usr/bin/env bash
# Runs the tests; installs what they need first. See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/test.sh [--parity] [--coverage] [ARGUMENT OF pytest]...

Runs the tests; installs what they need first.

  launch/test.sh            all that this machine can run
  launch/test.sh -k memory  some of them

  --parity  also installs torch, for the tests beside transformers' own models, and MkDocs, for the
            one that builds the site of docs/
  --coverage
            ends with a table of how much of each package the tests have run

Environment variables: RIME_PYTHON, RIME_VENV, as for launch/local.sh.
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
