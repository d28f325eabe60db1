"""Groups of similar work, and their spread over devices."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax.engine import load_balancing

# Few lengths: every one is a program of its own.
works = st.sampled_from([1, 2, 5, 23]).flatmap(
    lambda n: st.lists(st.integers(0, 500), min_size=n, max_size=n)
)


@given(works, st.sampled_from([1, 2, 3, 12]))
def test_every_slot_is_in_one_group_of_similar_work(steps, lanes):
    grouped, costs = (
        np.asarray(a) for a in load_balancing.groups(jnp.array(steps, jnp.int32), lanes)
    )
    count = len(steps)
    assert grouped.shape == (-(-count // lanes), lanes)
    filled = grouped.ravel()
    assert sorted(filled[filled < count]) == list(range(count))
    assert (filled[count:] == count).all()
    in_order = [steps[slot] for slot in filled if slot < count]
    assert in_order == sorted(steps, reverse=True)
    np.testing.assert_array_equal(costs, in_order[::lanes])


@given(works, st.sampled_from([1, 2, 5]))
def test_every_group_goes_to_one_device_and_no_device_is_far_behind(costs, devices):
    costs = sorted(costs, reverse=True)
    plan, counts = load_balancing.longest_first(jnp.array(costs, jnp.int32), devices)
    shares = [np.asarray(plan[d, : counts[d]]).tolist() for d in range(devices)]
    assert sorted(g for share in shares for g in share) == list(range(len(costs)))
    # The group that made a device the longest found it with the least work of all.
    longest = max(sum(costs[g] for g in share) for share in shares)
    assert longest <= sum(costs) / devices + costs[0] + 1


@pytest.mark.parametrize(
    ("costs", "devices", "longest"), [([6, 1, 1, 1, 1], 2, 6), ([5, 4, 3, 3, 3], 2, 10)]
)
def test_longest_first_by_hand(costs, devices, longest):
    """6 | 1 1 1 1; and 5 3 | 4 3 3, with the tie before the last 3 going to the first device."""
    plan, counts = load_balancing.longest_first(jnp.array(costs, jnp.int32), devices)
    loads = [sum(costs[g] for g in plan[d, : counts[d]]) for d in range(devices)]
    assert max(loads) == longest


@pytest.mark.parametrize(
    ("backend", "parameters", "slots", "devices", "lanes"),
    [
        ("cpu", 610, 1000, 2, 32),
        ("cpu", 4_554, 1000, 2, 10),
        ("cpu", 610, 30, 2, 15),
        ("cpu", 610, 5, 2, 3),
        ("cpu", 25_001, 1000, 1, 1),
        ("cpu", 10**9, 5, 1, 1),
        ("gpu", 44_426, 5, 1, 5),
        ("gpu", 44_426, 1000, 8, 125),
        ("gpu", 11_000_000, 1000, 1, 24),
        ("tpu", 10**9, 5, 1, 1),
        ("gpu", 0, 3, 1, 3),
    ],
)
def test_lanes_hold_so_many_parameters_and_no_more_than_a_devices_share(
    backend, parameters, slots, devices, lanes
):
    assert load_balancing.lanes(backend, parameters, slots, devices) == lanes
