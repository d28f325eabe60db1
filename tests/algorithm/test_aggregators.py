"""The mean over the uploads that count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ccfl_jax as ccfl

MEAN = ccfl.mean()
add = jax.jit(MEAN.add)


def combine(uploads, counted, lanes=None):
    """The mean of uploads added `lanes` at a time, the last of them with empty lanes."""
    params, participants = {"w": jnp.zeros(len(uploads[0]))}, jnp.int32(sum(counted))
    lanes, total = lanes or len(uploads), MEAN.start(params)
    empty = (0, -len(uploads) % lanes)
    uploads = np.pad(np.float32(uploads), (empty, (0, 0)), constant_values=np.nan)
    counted = np.pad(counted, empty)
    for first in range(0, len(uploads), lanes):
        part = slice(first, first + lanes)
        total = add(total, {"w": uploads[part]}, counted[part])
    return np.asarray(MEAN.finish(total, participants, MEAN.init(params))[0]["w"])


@pytest.mark.parametrize("other", [50.0, np.nan, np.inf, -np.inf])
def test_what_does_not_count_may_hold_anything(other):
    delta = combine([[1.0, 2.0], [other, 0.0], [3.0, 6.0]], [True, False, True])
    np.testing.assert_allclose(delta, [2.0, 4.0])
    np.testing.assert_array_equal(combine([[other, 1.0]], [False]), [0.0, 0.0])


def test_all_uploads_of_one_client_count_each():
    """Clients [3, 3, 5] sent 1, 2 and 6: each counts, 3.0; the latest alone would give 4."""
    np.testing.assert_allclose(combine([[1.0], [2.0], [6.0]], [True] * 3), [3.0])


def test_every_upload_weighs_the_same_whatever_its_version():
    """One upload of +1 and ten of -1: -9/11; averaged per version it would be 0."""
    delta = combine([[1.0]] + [[-1.0]] * 10, [True] * 11)
    np.testing.assert_allclose(delta, [-9 / 11], rtol=1e-6)


def test_groups_of_unequal_counts_are_no_mean_of_means():
    """[1, absent] and [3, 5] added apart: 3.0; the mean of the groups' means is 2.5."""
    delta = combine([[1.0], [np.nan], [3.0], [5.0]], [True, False, True, True], lanes=2)
    np.testing.assert_allclose(delta, [3.0])


def test_short_floats_are_added_in_float32():
    """3000 uploads of 1: a bfloat16 sum would stop at 256."""
    total = MEAN.start({"w": jnp.zeros((), jnp.bfloat16)})
    for _ in range(3):
        total = add(total, {"w": jnp.ones(1000, jnp.float32)}, jnp.ones(1000, bool))
    assert float(total["w"]) == 3000


SLOTS = st.tuples(st.floats(-1e3, 1e3, width=32), st.booleans())


@given(st.lists(SLOTS, min_size=1, max_size=20), st.sampled_from([1, 3, 20]))
def test_equals_numpy_on_any_mask_and_grouping(slots, lanes):
    values, counted = map(np.array, zip(*slots, strict=True))
    expected = values[counted].mean() if counted.any() else 0.0
    found = combine(values[:, None], counted, lanes)
    np.testing.assert_allclose(found, [expected], rtol=1e-5, atol=1e-3)
