#!/usr/bin/env bash
# Runs one command of this host apart from the terminal that starts it. See --help.
set -euo pipefail

usage() {
  cat <<EOF
Usage: launch/detached.sh start COMMAND [ARGUMENT]...
       launch/detached.sh follow | status | stop

launch/tpu_pod.sh runs this on every host of a slice, where the connection may break.

  start    starts COMMAND unless one is under way; what it prints is added to the log
  follow   prints the end of the log, and what is added, until the command has ended
  status   prints 'running', the exit status of the last command, or 'none'
  stop     sends SIGTERM to the command, and waits until it has saved and ended

Environment variables:
  RIME_DETACHED   where log, status and process id are; default: ~/rime_detached
EOF
}

place="${RIME_DETACHED:-$HOME/rime_detached}"

# A lock and not the number of the process, which may belong to another once that one is dead.
running() {
  exec 9>>"$place/lock"
  if flock --shared --nonblock 9; then
    exec 9>&-
    return 1
  fi
}

start() {
  if running; then
    printf 'already running; its log is %s/log\n' "$place"
    return
  fi
  rm -f "$place/status"
  # A process group of its own, to be signalled as one; the outer shell only notes how it ended.
  # shellcheck disable=SC2016  # for the inner shell
  setsid bash -c '
    place="$1"
    shift
    exec 9>>"$place/lock"
    # Those who only look hold it for a moment; another start, for long.
    flock --wait 5 9 || exit 0
    echo "$$" >"$place/pid"
    trap : TERM
    "$@"
    echo "$?" >"$place/status"
  ' detached "$place" "$@" </dev/null >>"$place/log" 2>&1 &
  until running || [ -e "$place/status" ]; do sleep 0.1; done
  printf 'started; its log is %s/log\n' "$place"
}

follow() {
  touch "$place/log"
  if running; then
    tail -n 200 -F --pid="$(cat "$place/pid")" "$place/log"
  else
    tail -n 200 "$place/log"
  fi
}

status() {
  if running; then
    printf 'running\n'
  elif [ -e "$place/status" ]; then
    cat "$place/status"
  else
    printf 'none\n'
  fi
}

stop() {
  running || return 0
  kill -TERM -- "-$(cat "$place/pid")"
  while running; do sleep 1; done
}

[ $# -gt 0 ] || set -- --nothing
action="$1"
shift
mkdir -p "$place"
case "$action" in
  -h | --help) usage ;;
  follow | status | stop) "$action" ;;
  start)
    [ $# -gt 0 ] || {
      printf 'error: start needs a command\n' >&2
      exit 2
    }
    start "$@"
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
