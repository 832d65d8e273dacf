#!/usr/bin/env python3
"""Runs experiments × seeds, locally, over SLURM or on TPU slices; see --help.

The program is rime_jax.sweep; this finds the environment that launch/local.sh has made.
"""

import importlib.util
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main() -> None:
    os.chdir(ROOT)
    if all(map(importlib.util.find_spec, ("jax", "ml_collections"))):
        python = sys.executable
    else:
        venv = pathlib.Path(os.environ.get("RIME_VENV") or ROOT / ".venv")
        python = str(venv / "bin" / "python")
        if not os.access(python, os.X_OK):
            sys.exit(f"error: {sys.executable} has no jax and {python} is not there; make the "
                     "environment (launch/local.sh does at its first call), or set RIME_VENV")
    os.execv(python, [python, "-m", "rime_jax.sweep", *sys.argv[1:]])


if __name__ == "__main__":
    main()
