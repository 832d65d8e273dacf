"""Processes that each bring their own rows make the updates of one process with all rows."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.learner import process_main

# Also with a tensor axis that spans both processes, so that they need the same rows.
MESHES = ("1,4,1", "1,1,4")


@pytest.mark.skipif(len(jax.devices()) < 4, reason="needs 4 devices")
def test_two_processes_equal_one(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    out = tmp_path / "found.npz"
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    environment = {**os.environ, "PYTHONPATH": ".", "XLA_FLAGS": flags}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.learner.process_main", str(port), "2", str(i), str(out),
             *MESHES],
            cwd=pathlib.Path(__file__).parents[2], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for i in range(2)]
    try:
        told = [process.communicate(timeout=400)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], told
    found = np.load(out)
    one = process_main.three_updates("1,1,1")
    for mesh in MESHES:
        for name, value in one.items():
            got = found[f"{mesh} {name}"]
            np.testing.assert_allclose(got, value, rtol=2e-5, atol=2e-5 * np.abs(value).max(),
                                       err_msg=f"{mesh} {name}")
