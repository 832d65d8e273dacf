#!/usr/bin/env bash
# Runs a command again until it has finished. See --help.
set -euo pipefail

usage() {
  cat <<EOF
Usage: launch/until_done.sh [--retries N] [--wait SECONDS] COMMAND [ARGUMENT]...

Runs COMMAND, and again when it was stopped or has died, until it ends with status 0.

  launch/until_done.sh launch/local.sh --set steps=1000

What the status of COMMAND means:
  0      finished: this ends with 0
  2, 78  what it was given does not fit (78: a configuration, a model, a checkpoint; rime_jax/errors.py),
         and would not the next time: this ends with the same
  75     it was told to stop and has saved (rime_jax.train does so at SIGTERM and Ctrl-C): again
  other  a failure, or a death by signal (137: killed, 134: its companion was lost): again, at most
         N times in a row; a run of ten minutes ends a row

SIGTERM and Ctrl-C to this script are passed on to COMMAND as SIGTERM, and are the end: it exits with
the status of COMMAND, or 75 where COMMAND was still starting and died of it, so that what has started
it can start it again.

  --retries N      default 3
  --wait SECONDS   before it is started again; default 10
EOF
}

usage_error() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

retries=3
pause=10
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help)
      usage
      exit
      ;;
    --retries | --wait)
      [[ "${2-}" =~ ^[0-9]+$ ]] || usage_error "$1 needs a whole number of at least 0"
      if [ "$1" = --retries ]; then retries="$2"; else pause="$2"; fi
      shift 2
      ;;
    -*) usage_error "no such option: $1" ;;
    *) break ;;
  esac
done
if [ $# -lt 1 ]; then
  usage >&2
  exit 2
fi

# A run of this many seconds was well; what ends it begins a new row of failures.
well_s=600

# shellcheck source=launch/_child.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/_child.sh"

tell() {
  printf '%s %s\n' "$(date '+%F %T')" "$*" >&2
}

failures=0
while true; do
  began="$SECONDS"
  run_child "$@"
  # shellcheck disable=SC2154  # run_child sets both
  case "$status" in 0 | 2 | 78) exit "$status" ;; esac
  [ "$signals" -eq 0 ] || exit "$status"
  [ $((SECONDS - began)) -lt "$well_s" ] || failures=0
  if [ "$status" -eq 75 ]; then
    tell "The run was told to stop and has saved (status 75); again in $pause s"
  elif [ "$failures" -ge "$retries" ]; then
    tell "The run ended with status $status, failure $((failures + 1)) in a row; that is the end." \
      "The same command goes on from the newest checkpoint once the cause is gone"
    exit "$status"
  else
    failures=$((failures + 1))
    tell "The run ended with status $status, failure $failures of $retries in a row; from the" \
      "newest checkpoint again in $pause s"
  fi
  run_child sleep "$pause"
  [ "$signals" -eq 0 ] || exit 75
done
