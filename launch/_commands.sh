# shellcheck shell=bash
# What the scripts that start something elsewhere, or for long, share; to be sourced.

# need NAME MEANING: ends the script where the environment variable NAME is not set.
need() {
  [ -n "${!1-}" ] || usage_error "$1 is not set; it is $2 (see --help)"
}

# need_program NAME REMEDY: ends the script where NAME would be run and is not installed.
need_program() {
  # shellcheck disable=SC2154  # the caller sets it
  [ -n "$dry_run" ] || command -v "$1" >/dev/null || usage_error "$1 is not installed: $2"
}

# need_training OWN WORD...: ends the script where the WORDs are no options of the training that can
# be handed on: no --config first, one of the script's OWN among them, or a file that this checkout
# lacks.
need_training() {
  local own="$1" word file
  shift
  case "${1-}" in
    --config) file="${2-}" ;;
    --config=*) file="${1#*=}" ;;
    *) usage_error "the training's options begin with --config, not with ${1:-nothing}" ;;
  esac
  # Size and values stand behind a colon.
  [[ "$file" != *.py:* ]] || file="${file%%.py:*}.py"
  need_file "--config $file" "$file"
  refuse_own "$own" --config "$@"
  for word in "$@"; do
    [[ "$word" != @* ]] || need_file "$word" "${word#@}"
  done
}

# refuse_own OWN PLACE WORD...: ends the script where one of its OWN options (separated by spaces) is
# among the WORDs for another program, which does not heed it: a --dry-run that costs a slice.
refuse_own() {
  local own=" $1 " place="$2" word
  shift 2
  for word in "$@"; do
    [[ "$own" != *" ${word%%=*} "* ]] ||
      usage_error "${word%%=*} is an option of this script; it stands before $place"
  done
}

# need_file WORD FILE: an absolute path may be one of the hosts alone.
need_file() {
  # shellcheck disable=SC2154  # the caller sets it
  [[ "$2" == /* ]] || [ -f "$root/$2" ] ||
    usage_error "$1: no such file in $root, where the training starts"
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
