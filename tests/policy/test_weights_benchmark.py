"""The benchmark of saving and loading runs and leaves no files."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_the_small_size_prints_a_row_for_each_phase(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load_save", "--size", "tiny", "--folder", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines()]
    assert rows == ["", "---", "save", "load"]
    assert not list(tmp_path.iterdir())
