# shellcheck shell=bash
# The environment of the scripts beside it; to be sourced with `root` (the repository) set.
#
# `ensure_venv plain|test|parity|tpu|gpu` leaves a complete virtual environment at $venv. A stamp, written
# last, says what it was made from. With a right stamp nothing is installed (no network needed);
# with a stale one pip brings it up to date; without one an earlier installation was cut off, and the
# environment is made again.

venv="${RIME_VENV:-$root/.venv}"
case "$venv" in /*) ;; *) venv="$PWD/$venv" ;; esac

# Only directories with this file in them are ever deleted.
owner_mark="made_by_rime_jax"

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

ensure_venv() {
  local kind="$1" target="$root" stamp
  case "$kind" in
    test | tpu | gpu) target="${root}[$kind]" ;;
    parity) target="${root}[test,parity,docs]" ;;
  esac
  lock_repository
  check_owner
  if ! venv_is_usable; then
    make_venv
  fi
  stamp="$(stamp_of)"
  if ! holds "$kind" "$stamp"; then
    printf 'Installing rime_jax into %s (the first time: about a minute, 1 GB)\n' "$venv"
    rm -f "$venv"/stamp.*
    "$venv/bin/python" -m pip install --constraint "$root/constraints.txt" --editable "$target" ||
      die "the installation failed; pip's message is above. Once its cause is gone (often: no" \
        "network), start this script again; it begins with a clean environment."
    printf '%s\n' "$stamp" >"$venv/stamp.$kind"
  fi
  unlock_repository
}

# plain is in every kind, and test in parity.
holds() {
  case "$1" in
    plain) set -- "$2" plain test parity tpu gpu ;;
    test) set -- "$2" test parity ;;
    *) set -- "$2" "$1" ;;
  esac
  local stamp="$1" kind
  shift
  for kind; do
    [ "$(read_stamp "$kind")" != "$stamp" ] || return 0
  done
  return 1
}

# Two scripts started at once must not install into one environment. macOS has no flock.
lock_repository() {
  if command -v flock >/dev/null; then
    exec 9<"$root/launch/_setup.sh"
    flock 9
  fi
}

unlock_repository() {
  exec 9<&-
}

check_owner() {
  if [ -e "$venv" ] && [ ! -e "$venv/$owner_mark" ] && [ -n "$(ls -A "$venv")" ]; then
    die "$venv was not made by this script. Remove it, or set RIME_VENV to another place."
  fi
}

# Complete (it has a stamp) and of the wanted Python version.
venv_is_usable() {
  local version
  ls "$venv"/stamp.* >/dev/null 2>&1 || return 1
  version="$(python_version "$venv/bin/python")" || return 1
  [ -z "${RIME_PYTHON-}" ] || [ "$(python_version "$RIME_PYTHON")" = "$version" ]
}

make_venv() {
  local python
  python="$(find_python)" || exit 1
  printf 'Making a virtual environment in %s with %s (Python %s)\n' \
    "$venv" "$python" "$(python_version "$python")"
  mkdir -p "$venv"
  : >"$venv/$owner_mark"
  find "$venv" -mindepth 1 -maxdepth 1 ! -name "$owner_mark" -exec rm -rf {} +
  "$python" -m venv "$venv" || die "$python could not make a virtual environment in $venv."
}

find_python() {
  local candidate
  for candidate in ${RIME_PYTHON:+"$RIME_PYTHON"} python3 python3.13 python3.12 python3.11; do
    if python_version "$candidate" >/dev/null; then
      printf '%s\n' "$candidate"
      return
    elif [ -n "${RIME_PYTHON-}" ]; then
      die "RIME_PYTHON=$RIME_PYTHON is not a Python of version 3.11 or newer with venv."
    fi
  done
  die "no Python of version 3.11 or newer with its venv module was found among python3," \
    "python3.13, python3.12, python3.11. Install one (Debian, Ubuntu: apt install python3-venv)," \
    "or set RIME_PYTHON to it."
}

# Prints major.minor; fails where the interpreter is missing, too old or without venv.
python_version() {
  "$1" -c 'if True:
    import sys
    if sys.version_info < (3, 11):
        sys.exit(1)
    import ensurepip, venv
    print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

read_stamp() {
  cat "$venv/stamp.$1" 2>/dev/null || true
}

# What the environment is made from; a moved repository or environment counts as another one.
stamp_of() {
  printf '%s\n%s\n%s\n' "$root" "$venv" "$(python_version "$venv/bin/python")" |
    cat - "$root/setup.py" "$root/pyproject.toml" "$root/constraints.txt" | cksum
}
