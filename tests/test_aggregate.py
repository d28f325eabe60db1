"""The mean over present, finite uploads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ccfl_jax as ccfl


def combine(uploads, present):
    transform = ccfl.mean()
    delta, counted, _ = jax.jit(transform.update)(
        {"w": jnp.asarray(uploads, jnp.float32)}, jnp.asarray(present), transform.init(None)
    )
    return np.asarray(delta["w"]), np.asarray(counted)


def test_is_the_mean_over_present_slots():
    delta, counted = combine([[1.0, 2.0], [50.0, 50.0], [3.0, 6.0]], [True, False, True])
    np.testing.assert_allclose(delta, [2.0, 4.0])
    np.testing.assert_array_equal(counted, [True, False, True])


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_absent_slots_may_hold_anything_and_poisoned_uploads_are_left_out(poison):
    delta, counted = combine([[1.0, 2.0], [poison, 0.0], [poison, 5.0]], [True, False, True])
    np.testing.assert_allclose(delta, [1.0, 2.0])
    np.testing.assert_array_equal(counted, [True, False, False])


def test_nobody_gives_zero():
    delta, counted = combine([[np.nan, 1.0]], [False])
    np.testing.assert_array_equal(delta, [0.0, 0.0])
    assert not counted.any()


def test_all_uploads_of_one_client_count_each():
    """Clients [3, 3, 5] sent 1, 2 and 6: each counts, 3.0; the latest alone would give 4."""
    delta, _ = combine([[1.0], [2.0], [6.0]], [True] * 3)
    np.testing.assert_allclose(delta, [3.0])


def test_every_upload_weighs_the_same_whatever_its_version():
    """One upload of +1 and ten of -1: -9/11; averaged per version it would be 0."""
    delta, _ = combine([[1.0]] + [[-1.0]] * 10, [True] * 11)
    np.testing.assert_allclose(delta, [-9 / 11], rtol=1e-6)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.booleans()), min_size=1, max_size=20))
def test_equals_numpy_on_any_mask(slots):
    values, present = np.array([v for v, _ in slots]), np.array([p for _, p in slots])
    delta, _ = combine(values[:, None], present)
    expected = values[present].mean() if present.any() else 0.0
    np.testing.assert_allclose(delta, [expected], rtol=1e-5, atol=1e-3)
