"""Where the files of repositories come from: the package index, a git URL, a clone."""

import dataclasses
import fcntl
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping

# A download or an installation that takes longer is stuck.
_MINUTES = 20
NETWORK = ("without a network, run python -m rime_jax.envs.codebase.prepare where there is one and "
           "take its cache (env.cache_dir) along; behind a proxy or a mirror, set HTTPS_PROXY or "
           "PIP_INDEX_URL")


class SourceError(ValueError):
    """Files that cannot be had; the message says from where and the remedy."""


@dataclasses.dataclass(frozen=True)
class Library:
    """A repository, and what its tests need.

    Attributes:
      name: as rows call it.
      url: `pypi:NAME==VERSION`, or a git URL or directory with `@COMMIT` behind it.
      requirements: what pip installs for its tests, the library's own requirements included.
      root: the folder that is on Python's path, relative to the repository; empty: where the
        modules lie that an installation brings.
      licence: SPDX name.
      sha256: of the archive of sources; empty: any.
      version: what builds are told that would ask git for it, of which there is none.
    """

    name: str
    url: str
    requirements: tuple[str, ...] = ()
    root: str = ""
    licence: str = ""
    sha256: str = ""
    version: str = "0.0.0"


def library(row: Mapping) -> Library:
    """From a JSON object with the fields of `Library`.

    Raises:
      SourceError: a field is unknown, missing or of another type, or leads out of the cache.
    """
    def wrong(why: object) -> SourceError:
        return SourceError(f"{dict(row)!r:.200} describes no library: {why}")

    requirements = row.get("requirements", [])
    if not isinstance(requirements, (list, tuple)) or not all(
            isinstance(text, str) for text in requirements):
        raise wrong("requirements must be a list of texts")
    try:
        made = Library(**{**row, "requirements": tuple(requirements)})
    except TypeError as error:
        raise wrong(error) from error
    for field in dataclasses.fields(Library):
        if field.name != "requirements" and not isinstance(getattr(made, field.name), str):
            raise wrong(f"{field.name} must be a text")
    if set(made.name.split("/")) & {"", ".", ".."} or "\0" in made.name:
        raise wrong("name is the place of its files, and must be a relative path without '..'")
    if made.root.startswith("/") or ".." in made.root.split("/"):
        raise wrong("root must be a folder of the repository")
    if made.url.startswith("pypi:") and not re.fullmatch(r"pypi:[\w.-]+==[\w.+!-]+", made.url):
        raise wrong("write url as pypi:NAME==VERSION")
    return made


def fetch(library: Library, cache: pathlib.Path) -> pathlib.Path:
    """The library's files, without any git history; made once, then read from the cache.

    Raises:
      SourceError: they cannot be had.
    """
    def make(place: pathlib.Path) -> None:
        if library.url.startswith("pypi:"):
            _from_index(library, place)
        else:
            _from_git(library.url, place)

    return made_once(cache / "sources" / library.name, make)


def made_once(place: pathlib.Path, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """A directory that is complete or not there, whoever else makes it at the same time."""
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / f".{place.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.is_dir():
            return place
        # What a kill left behind has a name of its own and is in nobody's way; it goes now.
        for old in place.parent.glob(f".{place.name}.making-*"):
            shutil.rmtree(old, ignore_errors=True)
        making = pathlib.Path(tempfile.mkdtemp(
            dir=place.parent, prefix=f".{place.name}.making-")) / place.name
        try:
            making.mkdir()
            make(making)
            making.rename(place)
        finally:
            shutil.rmtree(making.parent, ignore_errors=True)
    return place


def call(argv: list[str], what: str, remedy: str = "", **options) -> str:
    """Runs a program of the host; its output.

    Args:
      what: it is for.
      remedy: what helps where it fails.
      options: of `subprocess.run`.

    Raises:
      SourceError: it failed; with the end of what it printed.
    """
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60 * _MINUTES, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{what}: {error}") from error
    if done.returncode:
        raise SourceError(f"{what} failed: {done.stdout[-800:].strip()}"
                          + (f"\n({remedy})" if remedy else ""))
    return done.stdout


def _from_index(library: Library, place: pathlib.Path) -> None:
    requirement = library.url.removeprefix("pypi:")
    with tempfile.TemporaryDirectory() as folder:
        call([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:",
              "--disable-pip-version-check", "-d", folder, requirement],
             f"downloading the sources of {requirement}", remedy=NETWORK)
        (archive,) = pathlib.Path(folder).iterdir()
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if library.sha256 and digest != library.sha256:
            raise SourceError(
                f"the package index served {archive.name} with sha256 {digest}, not the "
                f"{library.sha256} that the list of libraries has; the file was tampered with, or "
                "the list is of another file")
        unpacked = pathlib.Path(folder) / "unpacked"
        if archive.suffix == ".zip":
            shutil.unpack_archive(archive, unpacked)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
        (top,) = unpacked.iterdir()
        for item in top.iterdir():
            shutil.move(item, place / item.name)


def _from_git(url: str, place: pathlib.Path) -> None:
    where, _, commit = url.rpartition("@")
    if not where or commit.startswith("-"):
        raise SourceError(f"{url!r} names no commit; write it as URL@COMMIT")
    with tempfile.TemporaryDirectory() as folder:
        call(["git", "clone", "--quiet", "--no-checkout", "--", where, f"{folder}/clone"],
             f"cloning {where}", remedy=NETWORK)
        call(["git", "-C", f"{folder}/clone", "archive", "-o", f"{folder}/files.tar", commit],
             f"reading commit {commit} of {where}")
        with tarfile.open(f"{folder}/files.tar") as tar:
            tar.extractall(place, filter="data")
