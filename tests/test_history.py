"""The ring buffer against a plain list of models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax import history


def model(t):
    return {"w": jnp.full((2,), float(t)), "b": {"c": jnp.float32(-t)}}


@given(length=st.integers(1, 7), rounds=st.integers(0, 20))
def test_reads_what_a_list_of_all_models_holds(length, rounds):
    ring, models = history.init(model(0), length), [model(0)]
    for t in range(rounds):
        ring = history.push(ring, jnp.int32(t + 1), model(t + 1))
        models.append(model(t + 1))
    for s in range(min(rounds, length - 1) + 1):
        found = history.read(ring, jnp.int32(rounds), jnp.int32(s))
        for a, b in zip(*map(jax.tree.leaves, (found, models[rounds - s])), strict=True):
            np.testing.assert_array_equal(a, b)


def test_keeps_dtypes_and_length():
    ring = history.init({"w": jnp.ones(3, jnp.bfloat16)}, 4)
    assert history.length(ring) == 4
    ring = history.push(ring, jnp.int32(1), {"w": jnp.zeros(3, jnp.bfloat16)})
    assert ring.models["w"].dtype == jnp.bfloat16
    assert ring.models["w"].shape == (4, 3)


def test_length_below_one_is_refused():
    with pytest.raises(ValueError, match="history_length: found 0, legal: a whole number"):
        history.init(model(0), 0)
