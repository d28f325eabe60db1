"""The mean over the uploads that count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Arrivals

MEAN = ccfl.mean()


def arrivals(counted):
    """A round's, of which only what counts matters to a mean."""
    whole = np.zeros(len(counted), np.int32)
    return Arrivals(whole, whole, whole, whole, np.asarray(counted), jnp.int32(np.sum(counted)))


def combine(uploads, counted, lanes=None, aggregate=MEAN):
    """The mean of uploads added `lanes` at a time, as a round adds them."""
    lanes, total = lanes or len(uploads), np.zeros(len(uploads[0]), np.float32)
    for first in range(0, len(uploads), lanes):
        part = slice(first, first + lanes)
        total = total + tree_util.masked_sum(np.float32(uploads[part]), np.array(counted[part]))
    return np.asarray(aggregate.finish({"w": total}, arrivals(counted), ())[0]["w"])


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


def test_a_fixed_divisor_counts_nobody():
    """(1 + 2) / 4."""
    found = combine([[1.0], [2.0], [np.nan]], [True, True, False], aggregate=ccfl.mean(over=4))
    np.testing.assert_allclose(found, [0.75])
    refused("over: expected a finite number > 0, found 0", ccfl.mean, 0)


def test_weighted_uploads_are_divided_by_their_weights():
    """(1 * 2 + 3 * 5) / (1 + 3); without any weight the step is 0."""
    total = ccfl.Weighted({"w": jnp.array([17.0])}, jnp.float32(4))
    delta, _ = MEAN.finish(total, arrivals([True, True]), ())
    np.testing.assert_allclose(delta["w"], [17 / 4])
    none = ccfl.Weighted({"w": jnp.zeros(1)}, jnp.float32(0))
    np.testing.assert_array_equal(MEAN.finish(none, arrivals([False]), ())[0]["w"], [0.0])


def test_short_floats_are_added_in_float32():
    """600 uploads of 1 in bfloat16, whose sum of its own would stop at 256: the mean is 1."""

    def finish(visit, end):
        return {"x": jnp.ones((), jnp.bfloat16)}, ()

    task = ccfl.Task(
        lambda key: {"x": jnp.zeros(())}, lambda params, *batch: params["x"], lambda *_: {}
    )
    server, rule = ccfl.cc_fedavg(), ccfl.Rule(finish=finish)
    simulation = ccfl.simulation(task, server, 0.1, 1, "steps", rule=rule, lanes=4)
    data = ccfl.FederatedData.from_indices({"x": np.zeros(1)}, [[0]])
    zeros = np.zeros((1, 600), np.int32)
    schedule = ccfl.Schedule(zeros, zeros, zeros + 1, zeros == 0)
    state, info = ccfl.run_rounds(
        simulation.round, simulation.init(jax.random.key(0)), schedule, data
    )
    assert float(state.params["x"]) == -1 and info.participants[0] == 600


SLOTS = st.tuples(st.floats(-1e3, 1e3, width=32), st.booleans())


@given(st.lists(SLOTS, min_size=1, max_size=20), st.sampled_from([1, 3, 20]))
def test_equals_numpy_on_any_mask_and_grouping(slots, lanes):
    values, counted = map(np.array, zip(*slots, strict=True))
    expected = values[counted].mean() if counted.any() else 0.0
    found = combine(values[:, None], counted, lanes)
    np.testing.assert_allclose(found, [expected], rtol=1e-5, atol=1e-3)
