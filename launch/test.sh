#!/usr/bin/env bash
# Runs the tests; installs what they need first. Arguments go to pytest: launch/test.sh -k memory
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=launch/_setup.sh
. "$root/launch/_setup.sh"
ensure_venv test

cd "$root"
exec "$venv/bin/python" -m pytest "$@"
