"""The prepared tree and environment of each task: made once, shared read-only by all episodes."""

import hashlib
import os
import pathlib
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping

from rime_jax.envs.codebase import installs, sandbox, sources, submission
from rime_jax.envs.codebase.tasks import CodeTask, whole


def cache_directory(given: str = "") -> pathlib.Path:
    """`given`, or rime_jax/codebase in the user's cache."""
    if given:
        return pathlib.Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(base).expanduser() / "rime_jax" / "codebase"


class TreeStore:
    """Tasks by name, and what their workspaces start from; for several threads at once."""

    def __init__(
        self, cache: pathlib.Path, tasks: Iterable[CodeTask],
        libraries: Mapping[str, sources.Library],
    ):
        """Args:
          cache: a directory of the user; filled on demand, may be deleted at any time.
          tasks: all that `task` finds.
          libraries: `CodeTask.source` → where its files come from.
        """
        self._cache = cache.absolute()
        self._tasks = {task.instance_id: task for task in tasks}
        self._libraries = dict(libraries)
        self._lock = threading.Lock()
        self._prepared: dict[str, sandbox.Base] = {}

    def task(self, instance_id: str) -> CodeTask:
        return self._tasks[instance_id]

    def missing(self) -> list[str]:
        """Names of the libraries whose files or environment are still to be made."""
        return [name for name, library in self._libraries.items()
                if not all((self._cache / part / library.name).is_dir()
                           for part in ("sources", "environments"))]

    def prepare(self, task: CodeTask) -> sandbox.Base:
        """The base of a task's workspaces: its tree at `sandbox.WORKDIR` with one commit, and an
        environment with its tests' requirements.

        Raises:
          SourceError: files cannot be had, or the task's patch does not fit them.
        """
        with self._lock:
            if task.instance_id in self._prepared:
                return self._prepared[task.instance_id]
        base = self.base(task.source, task.setup_patch)
        with self._lock:
            self._prepared[task.instance_id] = base
        return base

    def base(self, source: str, patch: str = "") -> sandbox.Base:
        """The same for any patch on a library's files."""
        library = self._libraries.get(source)
        if library is None:
            raise sources.SourceError(
                f"no library is called {source!r}, so its files cannot be fetched; add it to the "
                f"list of libraries (known: {sorted(self._libraries)[:8]})")
        files = sources.fetch(library, self._cache)
        name = f"{library.name}-{hashlib.sha256(patch.encode()).hexdigest()[:16]}"
        environment = installs.environment(library, files, self._cache)
        tree = sources.made_once(
            self._cache / "trees" / name, lambda place: _make_tree(
                files, environment / installs.GENERATED, patch, place, name))
        mounts = [sandbox.Mount(environment, installs.ENVIRONMENT),
                  sandbox.Mount(tree, submission.PRISTINE)]
        python = pathlib.Path(sys.base_prefix)
        if not python.is_relative_to("/usr"):
            mounts.append(sandbox.Mount(python, str(python)))
        path = f"{installs.ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin"
        return sandbox.Base(
            tree, tuple(mounts), {"PATH": path, "VIRTUAL_ENV": installs.ENVIRONMENT})


def _make_tree(
    files: pathlib.Path, generated: pathlib.Path, patch: str, place: pathlib.Path, name: str
) -> None:
    """A copy with the patch applied, and a git of a single commit that tells nothing of before."""
    shutil.copytree(files, place, symlinks=True, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns(".git", "__pycache__", "*.pyc"))
    if generated.is_dir():
        shutil.copytree(generated, place, dirs_exist_ok=True)
    for path in [place, *place.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))
    git = ["git", "-C", str(place), "-c", "user.name=rime_jax", "-c", "user.email=rime_jax@invalid",
           "-c", "commit.gpgSign=false", "-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0"]
    quiet = {"PATH": os.environ["PATH"], "HOME": "/nonexistent",
             "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
             "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
             "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z"}
    sources.call([*git, "init", "--quiet", "--initial-branch=main"], f"making {name}", env=quiet)
    if patch:
        # Outside of the tree, so that it cannot be committed.
        file = place.parent / "setup.patch"
        file.write_text(whole(patch))
        sources.call([*git, "apply", "--whitespace=nowarn", str(file)],
                     f"applying the patch of {name} to its sources", env=quiet)
        file.unlink()
    # Ignored files of an archive (built documentation, versions) belong to its tree as well.
    sources.call([*git, "add", "--all", "--force"], f"making {name}", env=quiet)
    sources.call([*git, "commit", "--quiet", "--allow-empty", "-m", "Initial commit"],
                 f"making {name}", env=quiet)
    shutil.rmtree(place / ".git" / "logs", ignore_errors=True)
    shutil.rmtree(place / ".git" / "hooks", ignore_errors=True)
    if os.geteuid() == 0:
        for path in [place, *place.rglob("*")]:
            os.chown(path, sandbox.USER, sandbox.USER, follow_symlinks=False)
