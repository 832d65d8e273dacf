"""Verdicts on disk: a question that was answered once is not asked again, not even by a later run.

One small file for each question, put in place by a rename: any number of processes and machines
may share a directory, also over a network, without locks, and a kill leaves whole files only.
"""

import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Sequence

from rime_jax.judge.base import CRITERIA, Verdict
from rime_jax.judge.rubric import RUBRIC_VERSION


def key_of(model: str, messages: Sequence[dict[str, str]]) -> str:
    """Names a question: the rubric's version, the judge's model and all that it is asked."""
    text = json.dumps([RUBRIC_VERSION, model, list(messages)])
    return hashlib.sha256(text.encode()).hexdigest()


class VerdictCache:
    """Key → verdict, as `<directory>/<first two digits>/<key>.json`."""

    def __init__(self, directory: pathlib.Path):
        """The directory is made with the first verdict."""
        self._directory = directory

    def get(self, key: str) -> Verdict | None:
        """The verdict, or None; a file that holds none is as good as missing."""
        try:
            scores = json.loads(self._file(key).read_bytes())
            return Verdict(tuple(scores[name] for name in CRITERIA))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def put(self, key: str, verdict: Verdict) -> None:
        """Keeps a verdict.

        Raises:
          OSError: the disk does not take it.
        """
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        scores = dict(zip(CRITERIA, verdict.criteria, strict=True))
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{key[:8]}")
        try:
            with os.fdopen(handle, "w") as opened:
                json.dump(scores, opened)
            os.replace(temporary, file)
        except BaseException:
            pathlib.Path(temporary).unlink(missing_ok=True)
            raise

    def _file(self, key: str) -> pathlib.Path:
        return self._directory / key[:2] / f"{key}.json"
