# shellcheck shell=bash
# Runs a server in the foreground for the scripts beside it; to be sourced with `root` set.

# serve PYTHON URL SECONDS MESSAGE COMMAND...: starts the command in a process group of its own,
# waits until URL answers, prints MESSAGE, and stays until the command ends or a signal stops the
# whole group. Exits with the command's status; 1 if it never answered.
serve() {
  local python="$1" url="$2" patience="$3" message="$4" deadline status=0
  shift 4
  # A process group of its own: its workers are stopped with it.
  set -m
  "$@" &
  server=$!
  set +m
  trap stop_server EXIT
  trap 'stop_server; exit 0' INT TERM
  deadline=$((SECONDS + patience))
  until answers "$python" "$url"; do
    if ! kill -0 "$server" 2>/dev/null; then
      printf 'error: the server ended before it answered; its messages are above\n' >&2
      exit 1
    elif [ "$SECONDS" -ge "$deadline" ]; then
      printf 'error: the server did not answer within %s s\n' "$patience" >&2
      exit 1
    fi
    sleep 1
  done
  printf '%s\n' "$message"
  wait "$server" || status=$?
  exit "$status"
}

# find_vllm INSTALL: leaves the Python that has vLLM in `python`; a non-empty INSTALL makes its
# environment if need be.
find_vllm() {
  python="${RIME_VLLM_PYTHON-}"
  [ -z "$python" ] || return 0
  # shellcheck disable=SC2154  # the caller sets it
  [ -z "$1" ] || "$root/launch/setup_vllm.sh"
  python="${RIME_VLLM_VENV:-$root/.venv-vllm}/bin/python"
}

stop_server() {
  trap - EXIT INT TERM
  kill -TERM -- "-$server" 2>/dev/null || true
  for _ in $(seq 150); do
    kill -0 -- "-$server" 2>/dev/null || break
    sleep 0.2
  done
  kill -KILL -- "-$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
}

# A proxy must not be asked about this machine.
answers() {
  "$1" - "$2" <<'EOF'
import sys
import urllib.request

try:
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1], timeout=5)
except OSError:
    sys.exit(1)
EOF
}
