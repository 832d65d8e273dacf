"""Verdicts on disk: whole or missing, whatever happens to the files and processes."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax.judge import cache as cache_lib
from rime_jax.judge import rubric
from rime_jax.judge.base import Verdict

WORDS = rubric.DomainWords("plays", "what a thing does", "a thing to try")
VERDICTS = st.builds(Verdict, st.tuples(*[st.integers(0, 2)] * 4))
KEY = "ab" * 32


def question(before, after, words=WORDS):
    return rubric.prompt(before, after, words)


@given(VERDICTS, VERDICTS)
def test_the_last_verdict_put_is_the_one_found(tmp_path_factory, one, two):
    directory = tmp_path_factory.mktemp("cache")
    for verdict in (one, two):
        cache_lib.VerdictCache(directory).put(KEY, verdict)
        assert cache_lib.VerdictCache(directory).get(KEY) == verdict


def test_an_unknown_question_makes_no_directory(tmp_path):
    cache = cache_lib.VerdictCache(tmp_path / "cache")
    assert cache.get(KEY) is None and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("held", [
    b"", b"{", b"null", b"[1, 2]", b"\xff", b'{"discoveries": 1}',
    b'{"discoveries": 3, "corrections": 0, "leads": 0, "non_redundant": 0}', b"[" * 100_000,
])
def test_a_broken_file_is_as_good_as_missing_and_is_mended(tmp_path, held):
    cache = cache_lib.VerdictCache(tmp_path)
    cache.put(KEY, Verdict((1, 1, 1, 1)))
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(held)
    assert cache.get(KEY) is None
    cache.put(KEY, Verdict((0, 1, 2, 0)))
    assert cache.get(KEY) == Verdict((0, 1, 2, 0))


def test_a_write_that_fails_leaves_the_old_verdict_and_no_other_file(tmp_path, monkeypatch):
    cache = cache_lib.VerdictCache(tmp_path)
    cache.put(KEY, Verdict((1, 1, 1, 1)))

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        cache.put(KEY, Verdict((2, 2, 2, 2)))
    assert cache.get(KEY) == Verdict((1, 1, 1, 1))
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 1


def test_every_part_of_a_question_names_another_verdict(monkeypatch):
    other = rubric.DomainWords("fixes", "where a thing is", "a thing to try")
    keys = [cache_lib.key_of(model, messages) for model, messages in (
        ("a", question("", "x")), ("b", question("", "x")), ("a", question("x", "")),
        ("a", question("", "y")), ("a", question("", "x", other)))]
    monkeypatch.setattr(cache_lib, "RUBRIC_VERSION", rubric.RUBRIC_VERSION + 1)
    keys.append(cache_lib.key_of("a", question("", "x")))
    assert len(set(keys)) == len(keys)


WRITER = """
import pathlib, sys
from rime_jax.judge.base import Verdict
from rime_jax.judge.cache import VerdictCache
cache = VerdictCache(pathlib.Path(sys.argv[1]))
for i in range(200):
    cache.put(f"{i % 10:064x}", Verdict((i % 3,) * 4))
    found = cache.get(f"{(i + 5) % 10:064x}")
    assert i < 10 or len(set(found.criteria)) == 1, found
"""


def test_processes_that_write_at_once_never_read_half_a_verdict(tmp_path):
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
                 for _ in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert sorted(file.stem for file in files) == [f"{i:064x}" for i in range(10)]
