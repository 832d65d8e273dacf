"""The Python environment of a library's tests, in which its modules come from the workspace."""

import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

from rime_jax.envs.codebase import sandbox, sources

# Where workspaces see the environment (read-only).
ENVIRONMENT = "/opt/env"
# Files that the installation made and the sources lack, for every tree.
GENERATED = "generated"
_MADE_OF = "made_of.json"
# A repository without one of these in a file of that name has nothing that pip could install.
_INSTALLABLE = {"pyproject.toml": r"^\[(project|build-system|tool\.poetry|tool\.flit\.metadata)\]",
                "setup.py": "", "setup.cfg": r"^\[metadata\]"}


def environment(
    library: sources.Library, files: pathlib.Path, cache: pathlib.Path
) -> pathlib.Path:
    """The library's environment; made once, then read from the cache.

    Args:
      library: is installed for its requirements and metadata; its own modules are then deleted, and
        Python's path leads to `sandbox.WORKDIR` instead.
      files: its sources.
      cache: of the user.

    Raises:
      SourceError: an installation failed, or the cache holds another library of that name.
    """
    place = sources.made_once(
        cache / "environments" / library.name, lambda making: _make(library, files, making))
    file = place / _MADE_OF
    if file.is_file() and (found := json.loads(file.read_text())) != _made_of(library):
        raise sources.SourceError(
            f"{place} was made of {found}, but the list of libraries and this Python say "
            f"{_made_of(library)}; give the library another name, or delete {place}, "
            f"{cache / 'sources' / library.name} and {cache / 'trees' / library.name}-*, which are "
            "then made again")
    return place


def _made_of(library: sources.Library) -> dict:
    return {"url": library.url, "requirements": list(library.requirements), "root": library.root,
            "version": library.version, "python": ".".join(map(str, sys.version_info[:2]))}


def _make(library: sources.Library, files: pathlib.Path, place: pathlib.Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    base = pathlib.Path(sys.base_prefix) / "bin" / f"python{version}"
    what = f"making the environment of {library.name}"
    sources.call([str(base), "-m", "venv", str(place)], what)
    python = str(place / "bin" / "python")
    with tempfile.TemporaryDirectory() as folder:
        # A build writes into its sources; `.[tests]` among the requirements means this copy.
        copy = pathlib.Path(folder) / "sources"
        shutil.copytree(files, copy, symlinks=True)
        wanted = ["pytest>=8,<10", *library.requirements]
        if library.url.startswith("pypi:"):
            wanted.append(library.url.removeprefix("pypi:"))
        elif _installable(files):
            wanted.append(str(copy))
        sources.call([python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet",
                      *wanted], what, remedy=sources.NETWORK, cwd=copy, env=_told(library.version))
        (site,) = (place / "lib").glob("python*/site-packages")
        record = _record(site, library, copy)
    root = library.root or _root(record, site, files)
    _take_out(record, site, files / root, place / GENERATED / root)
    path = sandbox.WORKDIR if root == "." else f"{sandbox.WORKDIR}/{root}"
    (site / "workspace.pth").write_text(f"{path}\n")
    sources.call([python, "-m", "pip", "uninstall", "--disable-pip-version-check", "--quiet",
                  "--yes", "pip"], what)
    for script in (place / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            text = script.read_bytes()
            script.write_bytes(text.replace(str(place).encode(), ENVIRONMENT.encode()))
    (place / _MADE_OF).write_text(json.dumps(_made_of(library), indent=2) + "\n")


def _installable(files: pathlib.Path) -> bool:
    return any((files / name).is_file() and re.search(
        mark, (files / name).read_text(errors="replace"), re.MULTILINE)
        for name, mark in _INSTALLABLE.items())


def _told(version: str) -> dict[str, str]:
    """Variables by which tools that take the version from git do without it."""
    return dict(os.environ) | {
        "SETUPTOOLS_SCM_PRETEND_VERSION": version, "PBR_VERSION": version,
        "PDM_BUILD_SCM_VERSION": version, "POETRY_DYNAMIC_VERSIONING_BYPASS": version}


def _record(
    site: pathlib.Path, library: sources.Library, copy: pathlib.Path
) -> list[pathlib.Path]:
    """Files that the library installed in site-packages, but for its metadata."""
    index, _, rest = library.url.partition("pypi:")
    name = _folded(re.split(r"[=<>!~\[; ]", rest)[0]) if not index else ""
    for record in site.glob("*.dist-info/RECORD"):
        own = record.parent
        origin = own / "direct_url.json"
        from_copy = origin.is_file() and json.loads(origin.read_text())["url"] == copy.as_uri()
        if not from_copy and _folded(own.name.split("-")[0]) != name:
            continue
        listed = [(site / line.rsplit(",", 2)[0].strip('"')).resolve()
                  for line in record.read_text().splitlines()]
        return [file for file in listed if file.is_relative_to(site) and own not in file.parents
                and "__pycache__" not in file.parts]
    return []


def _folded(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _root(record: list[pathlib.Path], site: pathlib.Path, files: pathlib.Path) -> str:
    """The folder of the sources from which most of the installed modules come."""
    modules = [file.relative_to(site) for file in record if file.suffix == ".py"]
    if not modules:
        return "src" if (files / "src").is_dir() else "."
    tops = {module.parts[0] for module in modules}
    folders = {path.parent for top in tops for path in files.rglob(top)}
    best = max(folders, default=files, key=lambda folder: (
        sum((folder / module).is_file() for module in modules), -len(folder.parts), str(folder)))
    return str(best.relative_to(files))


def _take_out(
    record: list[pathlib.Path], site: pathlib.Path, root: pathlib.Path, generated: pathlib.Path
) -> None:
    """Deletes a library's modules; what its sources lack (versions, compiled parts) is kept."""
    for file in record:
        name = file.relative_to(site)
        if file.is_file() and not (root / name).exists() and file.suffix != ".pth":
            (generated / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, generated / name)
        file.unlink(missing_ok=True)
    # Empty folders would be namespace packages in front of the workspace's.
    for folder in sorted((p for p in site.rglob("*") if p.is_dir()), reverse=True):
        if not any(p for p in folder.iterdir() if p.name != "__pycache__"):
            shutil.rmtree(folder)
