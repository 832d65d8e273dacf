#!/usr/bin/env bash
# Runs `srun ARGUMENT...`, for launch/slurm/job.sh. SIGTERM to this script goes to the tasks of the
# job's first part; srun itself would kill them at once.
set -euo pipefail

# shellcheck source=launch/_child.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../_child.sh"

pass_on() {
  signals=$((signals + 1))
  scancel --signal=TERM "$SLURM_JOB_ID${SLURM_HET_SIZE:++0}" || true
}

run_child srun "$@"
# shellcheck disable=SC2154  # run_child sets it
exit "$status"
