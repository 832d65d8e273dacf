"""What the tests of launch scripts share: golden files, and a checkout that scripts can run in."""

import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).parents[1]
GOLDEN = ROOT / "tests/golden/launch"


def check_golden(name, text, **places):
    """Compares with tests/golden/launch/NAME.txt; RIME_GOLDEN=write makes the file instead.

    Args:
      places: words that stand for paths of this machine.
    """
    for word, path in places.items():
        text = text.replace(str(path), f"${word}")
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("RIME_GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def checkout(path):
    """A git checkout with the scripts, under a path with a space."""
    root = path / "a clone"
    shutil.copytree(ROOT / "launch", root / "launch")
    for name in ("setup.py", "pyproject.toml", "constraints.txt", "experiments/alchemy/rime.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / ".gitignore").write_text(".venv/\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def program(file, text):
    """An executable stand-in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def run(command, **environment):
    """The finished process; of this environment it has the usual programs alone."""
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"} | {k: str(v) for k, v in environment.items()})
