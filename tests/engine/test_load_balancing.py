"""Groups of similar work, and their spread over devices."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax.engine import load_balancing

groups = jax.jit(load_balancing.groups, static_argnums=1)
longest_first = jax.jit(load_balancing.longest_first, static_argnums=1)

# Few lengths: every one is a program of its own.
works = st.one_of(st.lists(st.integers(0, 500), min_size=n, max_size=n) for n in (1, 5, 23))


@given(works, st.sampled_from([1, 2, 12]))
def test_every_slot_is_in_one_group_of_similar_work(steps, lanes):
    grouped, costs = map(np.asarray, groups(np.array(steps, np.int32), lanes))
    count, filled = len(steps), grouped.ravel()
    assert grouped.shape == (-(-count // lanes), lanes)
    assert sorted(filled[:count]) == list(range(count)) and (filled[count:] == count).all()
    in_order = [steps[slot] for slot in filled[:count]]
    assert in_order == sorted(steps, reverse=True)
    np.testing.assert_array_equal(costs, in_order[::lanes])


def shares_of(costs, devices):
    """The groups of each device."""
    plan, counts = map(np.asarray, longest_first(np.array(costs, np.int32), devices))
    return [plan[d, : counts[d]].tolist() for d in range(devices)]


@given(works, st.sampled_from([1, 2, 5]))
def test_every_group_goes_to_one_device_and_no_device_is_far_behind(costs, devices):
    costs = sorted(costs, reverse=True)
    shares = shares_of(costs, devices)
    assert sorted(g for share in shares for g in share) == list(range(len(costs)))
    # The group that made a device the longest found it with the least work of all.
    longest = max(sum(costs[g] for g in share) for share in shares)
    assert longest <= sum(costs) / devices + costs[0] + 1


@pytest.mark.parametrize(
    ("costs", "shares"),
    [
        ([6, 1, 1, 1, 1], [[0], [1, 2, 3, 4]]),
        ([5, 4, 3, 3, 3], [[0, 3], [1, 2, 4]]),  # 5, 4: 3 to the second; 5, 7: 3 to the first
    ],
)
def test_longest_first_by_hand(costs, shares):
    assert shares_of(costs, 2) == shares


def test_a_recurrent_model_has_one_lane_on_a_cpu():
    assert load_balancing.lanes("cpu", 610, 1000, 2, recurrent=lambda: True) == 1
    assert load_balancing.lanes("gpu", 610, 1000, 2, recurrent=lambda: True) == 500


@pytest.mark.parametrize("shape", [("cpu", 44_426, 1000, 2), ("gpu", 610, 1000, 2)])
def test_a_visit_is_not_traced_where_its_loops_decide_nothing(shape):
    load_balancing.lanes(*shape, recurrent=lambda: pytest.fail("traced"))


def loop(body, times):
    """A loop of so many steps over a matrix."""
    return lambda x: jax.lax.fori_loop(0, times, lambda _, x: body(x), x)


@pytest.mark.parametrize(("step", "recurrent"), [
    (loop(lambda x: x @ x, 3), True), (jax.grad(lambda x: loop(lambda x: x @ x, 3)(x).sum()), True),
    (lambda x: x @ x, False), (loop(lambda x: x + 1, 3), False),
    (loop(lambda x: x / (x[0] @ x[0]), 3), False),
])  # fmt: skip
def test_a_recurrent_model_has_matrix_products_in_a_loop(step, recurrent):
    """Within the loop over steps, whose number is an argument."""

    def visit(x, steps):
        return jax.jit(loop(step, steps))(x)

    assert load_balancing.is_recurrent(visit, np.eye(2, dtype=np.float32), 5) == recurrent


@pytest.mark.parametrize(
    ("case", "lanes"),  # backend, parameters, slots, devices
    [
        (("cpu", 610, 1000, 2), 32), (("cpu", 4_554, 1000, 2), 10), (("cpu", 610, 30, 2), 15),
        (("cpu", 10**9, 5, 1), 1), (("tpu", 10**9, 5, 1), 1), (("gpu", 44_426, 1000, 8), 125),
        (("gpu", 11_000_000, 1000, 1), 24), (("gpu", 0, 3, 1), 3),
    ],
)  # fmt: skip
def test_lanes_hold_so_many_parameters_and_no_more_than_a_devices_share(case, lanes):
    assert load_balancing.lanes(*case) == lanes
