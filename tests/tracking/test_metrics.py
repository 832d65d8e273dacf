import json
import math
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rime_jax.tracking import metrics


def _written(path, steps):
    with metrics.MetricsLog(path) as log:
        for step in steps:
            log.write(step, {"loss": step / 2})
    return path


def test_what_is_written_is_read_back(tmp_path):
    path = _written(tmp_path / "metrics.jsonl", range(3))
    assert metrics.read(path) == [{"step": s, "loss": s / 2} for s in range(3)]


def test_a_line_is_readable_before_the_log_is_closed(tmp_path):
    log = metrics.MetricsLog(tmp_path / "metrics.jsonl")
    log.write(7, {"loss": 1.0})
    assert metrics.read(tmp_path / "metrics.jsonl") == [{"step": 7, "loss": 1.0}]
    log.close()


def test_numbers_that_are_not_finite_become_null_in_strict_json(tmp_path):
    values = {"a": math.nan, "b": -math.inf, "c": np.float32("inf"), "d": jnp.float32(math.nan)}
    with metrics.MetricsLog(tmp_path / "m") as log:
        log.write(0, values)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    line = json.loads((tmp_path / "m").read_text(), parse_constant=refuse)
    assert line == {"step": 0, "a": None, "b": None, "c": None, "d": None}


def test_array_scalars_are_written_as_numbers(tmp_path):
    with metrics.MetricsLog(tmp_path / "m") as log:
        log.write(0, {"a": np.int64(3), "b": jnp.float32(0.5), "c": np.array(2.0)})
    assert metrics.read(tmp_path / "m") == [{"step": 0, "a": 3, "b": 0.5, "c": 2.0}]


def test_a_missing_file_has_no_lines(tmp_path):
    assert metrics.read(tmp_path / "absent") == []
    metrics.truncate(tmp_path / "absent", 3)
    assert not (tmp_path / "absent").exists()


def test_a_step_cannot_be_written_twice(tmp_path):
    path = _written(tmp_path / "m", range(5))
    with metrics.MetricsLog(path) as log, pytest.raises(ValueError, match="step 4.*truncate"):
        log.write(4, {})


@given(cut=st.integers(0, 200), checkpoint=st.integers(-1, 6))
def test_a_run_cut_at_any_byte_and_resumed_has_every_step_once(tmp_path_factory, cut, checkpoint):
    path = _written(tmp_path_factory.mktemp("cut") / "m", range(6))
    path.write_bytes(path.read_bytes()[:cut])
    survived = [line["step"] for line in metrics.read(path)]
    metrics.truncate(path, checkpoint)
    kept = [step for step in survived if step <= checkpoint]
    assert [line["step"] for line in metrics.read(path)] == kept
    _written(path, range(checkpoint + 1, 8))
    steps = [line["step"] for line in metrics.read(path)]
    assert steps == kept + list(range(checkpoint + 1, 8))


@given(cut=st.integers(0, 200))
def test_a_torn_line_does_not_swallow_the_next_one(tmp_path_factory, cut):
    path = _written(tmp_path_factory.mktemp("torn") / "m", range(6))
    path.write_bytes(path.read_bytes()[:cut])
    before = metrics.read(path)
    _written(path, [10])
    assert metrics.read(path) == [*before, {"step": 10, "loss": 5.0}]


@pytest.mark.parametrize("failing", ["write_bytes", "replace"])
def test_a_file_that_cannot_be_written_stays_as_it_was_and_leaves_nothing(
        tmp_path, monkeypatch, failing):
    file = tmp_path / "x.json"
    metrics.write_atomically(file, b"old")

    def full(self, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, failing, full)
    with pytest.raises(OSError, match="No space"):
        metrics.write_atomically(file, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"] and file.read_bytes() == b"old"


def test_processes_that_write_one_file_at_once_leave_a_whole_one(tmp_path):
    file, sizes = tmp_path / "x", (10, 1_000_000)
    writers = [subprocess.Popen([sys.executable, "-c", (
        "from rime_jax.tracking import metrics\n"
        f"for _ in range(50):\n    metrics.write_atomically({str(file)!r}, b'x' * {n})")])
        for n in sizes]
    while any(writer.poll() is None for writer in writers):
        assert not file.exists() or file.stat().st_size in sizes
    assert [writer.returncode for writer in writers] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("line", ['{"step": true}', '{"step": -1}', f'{{"step": 1{"0" * 400}}}',
                                  '{"step": 1.0}', "[" * 100_000, "\xff"])
def test_a_line_without_a_step_is_as_if_torn(tmp_path, line):
    (tmp_path / "m").write_bytes(f'{line}\n{{"step": 3}}\n'.encode("latin-1"))
    assert metrics.read(tmp_path / "m") == [{"step": 3}]
