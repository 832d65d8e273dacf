"""Settings that must hold before jax starts: eight virtual CPU devices, strict shapes, a cache."""

import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and compute little, so programs are not optimised (half the time). XLA ends a
# process whose devices do not meet within 40 s, which on a busy machine they may not.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_cpu_collective_call_terminate_timeout_seconds=600"
)
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "rime_jax_test_cache")
)
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

# Shared machines stall at any moment; and continuous integration tries the same examples each time.
hypothesis.settings.register_profile(
    "rime_jax", deadline=None, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("rime_jax")


@pytest.fixture(autouse=True, scope="module")
def _programs_of_one_module():
    """Frees compiled programs.

    Each holds a number of memory maps, of which Linux gives a process 65,530: without this the
    suite ends in a segmentation fault inside the compiler.
    """
    yield
    jax.clear_caches()
