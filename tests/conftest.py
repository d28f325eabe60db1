"""What every test runs under."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 4)  # for the tests of meshes; all others use the first
settings.register_profile("ccfl", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("ccfl")


@pytest.fixture
def x64():
    """The test runs with 64-bit JAX."""
    with jax.enable_x64(True):
        yield
