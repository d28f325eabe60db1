"""The ring against a plain list of models; slots that are none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import assert_trees_equal
from refusal import refused

from ccfl_jax.algorithm import model_history

read, write = jax.jit(model_history.read), jax.jit(model_history.write)


def model(t):
    return {"w": np.full(2, t, np.float32), "b": {"c": np.float32(-t)}}


@given(length=st.sampled_from([1, 2, 5]), rounds=st.integers(0, 20))
def test_reads_what_a_list_of_all_models_holds(length, rounds):
    ring, models = model_history.init(model(0), length), [model(0)]
    for t in range(rounds):
        models.append(model(t + 1))
        ring = write(ring, model_history.ring_slot(jnp.int32(t + 1), length), models[-1], t + 1)
    for slot, version in enumerate(ring.version.tolist()):
        assert version == max((t for t in range(rounds + 1) if t % length == slot), default=-1)
    for s in range(min(rounds, length - 1) + 1):
        found = read(ring, model_history.ring_slot(jnp.int32(rounds - s), length))
        assert_trees_equal(found, models[rounds - s])


def test_keeps_dtypes_and_length():
    ring = model_history.init({"w": jnp.ones(3, jnp.bfloat16)}, 4)
    ring = model_history.write(ring, jnp.int32(1), {"w": jnp.zeros(3, jnp.bfloat16)}, 1)
    assert model_history.length(ring) == 4
    assert ring.models["w"].dtype == jnp.bfloat16 and ring.models["w"].shape == (4, 3)


def test_length_below_one_is_refused():
    refused("history_length: expected an integer >= 1, found 0", model_history.init, model(0), 0)


@pytest.mark.parametrize("slot", [3, 4, 2**31 - 1])
def test_a_slot_past_the_last_takes_nothing(slot):
    """Clamped, the model would overwrite the one in slot 2."""
    kept = model_history.init(model(5), 3)
    for k in (1, 2):
        kept = write(kept, jnp.int32(k), model(5 + k), k)
    assert_trees_equal(write(kept, jnp.int32(slot), model(9), 9), kept)
