"""What every test runs under."""

import os

# Two host devices would only slow the tests of one-device code; the layout tests start processes.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")
settings.register_profile("ccfl", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("ccfl")


@pytest.fixture
def x64():
    """The test runs with 64-bit JAX."""
    with jax.enable_x64(True):
        yield
