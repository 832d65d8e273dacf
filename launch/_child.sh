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
# they do not cut short, in `status`. A child that they killed before it could hear them has nothing
# to save: its status is that of one that has saved, 75.
run_child() {
  local before
  "$@" &
  child=$!
  # One that came before the line above.
  [ "$signals" -eq 0 ] || pass_on
  while true; do
    before="$signals" status=0
    wait "$child" || status=$?
    [ "$signals" -ne "$before" ] || break
  done
  # shellcheck disable=SC2034  # for the caller
  if [ "$signals" -gt 0 ] && [ "$status" -eq 143 ]; then status=75; fi
  child=
}
