"""What the tests of faults share."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled():
    """The compiler optimises little, which halves its time; numbers keep their tolerances."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
    jax.config.update("jax_disable_most_optimizations", False)
