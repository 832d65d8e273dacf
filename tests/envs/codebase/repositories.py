"""Made-up repositories with bugs, and an environment with pytest that needs no network."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from rime_jax.envs.codebase import bubblewrap, interface, sandbox, sources
from rime_jax.envs.codebase.tasks import CodeTask

FUNCTIONS = 8
SUBMIT = f"```bash\necho {interface.SENTINEL}\n```"
_PACKAGES = ("_pytest", "pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")


def box() -> bubblewrap.Bubblewrap:
    """A sandbox, or a skip that says why there is none."""
    try:
        made = bubblewrap.Bubblewrap(sandbox.Limits(timeout_s=60))
        place = pathlib.Path(__file__).parent
        workspace = made.open(sandbox.Base(place))
        workspace.close()
    except sandbox.SandboxError as error:
        pytest.skip(f"no sandbox here: {error}")
    return made


def environment(place: pathlib.Path) -> None:
    """A virtual environment with copies of this Python's pytest."""
    base = pathlib.Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    subprocess.run([str(base), "-m", "venv", "--without-pip", str(place)], check=True)
    (site,) = (place / "lib").glob("python*/site-packages")
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None:
            continue
        file = pathlib.Path(found.origin)
        if file.name == "__init__.py":
            shutil.copytree(file.parent, site / name,
                            ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(file, site)
    (site / "workspace.pth").write_text(f"{sandbox.WORKDIR}\n")


def _git(*arguments: str, where: pathlib.Path) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=where, check=True,
        stdout=subprocess.PIPE, text=True,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}).stdout


def make(folder: pathlib.Path, name: str) -> tuple[sources.Library, list[CodeTask]]:
    """A repository of `FUNCTIONS` functions with a test each, and one task for each function."""
    where = folder / name
    (where / "tests").mkdir(parents=True)
    body = [f"def add_{i}(a, b):\n    total = a + b\n    return total + {i}\n\n\n"
            for i in range(FUNCTIONS)]
    checks = [f"def test_add_{i}():\n    assert {name}.add_{i}(2, 3) == {5 + i}\n\n\n"
              for i in range(FUNCTIONS)]
    (where / f"{name}.py").write_text("".join(body))
    (where / "tests" / "test_all.py").write_text(f"import {name}\n\n\n" + "".join(checks))
    _git("init", "-q", where=where)
    _git("add", "-A", where=where)
    _git("commit", "-qm", "all", where=where)
    commit = _git("rev-parse", "HEAD", where=where).strip()
    tasks = []
    ids = [f"tests/test_all.py::test_add_{i}" for i in range(FUNCTIONS)]
    for i in range(FUNCTIONS):
        broken = body[i].replace("total = a + b", "total = a - b")
        (where / f"{name}.py").write_text("".join([*body[:i], broken, *body[i + 1:]]))
        patch = _git("diff", where=where)
        _git("checkout", "-q", ".", where=where)
        tasks.append(CodeTask(
            instance_id=f"{name}.op_change__{i}", repository=name, source=name, setup_patch=patch,
            gold_patch="", fail_to_pass=(ids[i],), pass_to_pass=tuple(ids[:i] + ids[i + 1:]),
            statement=f"add_{i} of {name} returns something else than the sum and {i}.",
            strategy="op_change"))
    return sources.Library(name, f"{where}@{commit}"), tasks
