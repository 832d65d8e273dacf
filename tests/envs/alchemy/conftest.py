"""Recorded Alchemy data, for the tests that compare with them."""

import pathlib

import pytest

_DATA = pathlib.Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture
def recorded():
    """Path of a recorded file by name; skips the test where it is absent."""

    def path(name: str) -> pathlib.Path:
        if not (_DATA / name).exists():
            pytest.skip(f"{name} is absent")
        return _DATA / name

    return path
