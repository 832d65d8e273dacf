"""The sandbox that the tests of a module share."""

import pytest

from tests.envs.codebase import repositories


@pytest.fixture(scope="module")
def box():
    made = repositories.box()
    yield made
    made.close()
