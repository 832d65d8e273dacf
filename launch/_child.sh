# shellcheck shell=bash
# Runs a command that hears the signals of the script that starts it; to be sourced.

# SIGTERM and SIGINT that have come so far.
signals=0
child=

pass_on() {
  signals=$((signals + 1))
  [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
}
trap pass_on INT TERM

# run_child COMMAND...: runs it, passes signals on to it as SIGTERM, and leaves its exit status, which
# they do not cut short, in `status`.
run_child() {
  local before
  "$@" &
  child=$!
  # One that came before the line above.
  [ "$signals" -eq 0 ] || pass_on
  while true; do
    before="$signals" status=0
    # shellcheck disable=SC2034  # for the caller
    wait "$child" || status=$?
    [ "$signals" -ne "$before" ] || break
  done
  child=
}
