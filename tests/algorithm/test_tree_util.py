"""Pytree helpers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ccfl_jax.algorithm import tree_util


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found(dtype, bad):
    top = float(jnp.finfo(dtype).max)
    entry = {"a": jnp.array([[top, -top, 0.0]], dtype), "b": jnp.float32(3), "c": jnp.zeros((0, 2))}
    assert jax.jit(tree_util.all_finite)(entry)
    for place in range(3):
        spoilt = entry | {"a": entry["a"].at[0, place].set(bad)}
        assert not jax.jit(tree_util.all_finite)(spoilt)
    assert not tree_util.all_finite(entry | {"b": jnp.float32(bad)})
