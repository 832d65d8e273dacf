# shellcheck shell=bash
# What the scripts that talk to a cluster share; to be sourced.

# need NAME MEANING: ends the script where the environment variable NAME is not set.
need() {
  [ -n "${!1-}" ] || usage_error "$1 is not set; it is $2 (see --help)"
}

# need_program NAME REMEDY: ends the script where NAME would be run and is not installed.
need_program() {
  # shellcheck disable=SC2154  # the caller sets it
  [ -n "$dry_run" ] || command -v "$1" >/dev/null || usage_error "$1 is not installed: $2"
}

usage_error() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# act COMMAND...: runs it; with a non-empty `dry_run` it only prints it, as a shell would take it.
act() {
  # shellcheck disable=SC2154  # the caller sets it
  if [ -n "$dry_run" ]; then show "$@"; else "$@"; fi
}

show() {
  printf '%s\n' "$(quoted "$@")"
}

# quoted WORD...: the words as one text that a shell splits into them again.
quoted() {
  local word text=
  for word; do
    if [[ "$word" =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then
      text+="$word "
    else
      text+="'${word//\'/\'\\\'\'}' "
    fi
  done
  printf '%s' "${text% }"
}
