"""Rows of what clients remember, planned over a schedule."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import ccfl_jax as ccfl
from ccfl_jax.schedules import memory_plan


def test_only_clients_that_come_again_have_a_row():
    """Client 0 from round 0 to 4, client 2 from round 1 to 3; all others come once."""
    client = np.array([[0, 1], [2, 0], [2, 3], [4, 2], [0, 5]])
    works = np.ones_like(client, bool)
    recall, store = memory_plan.plan(client, works)
    rows = memory_plan.rows_needed(client, works)
    assert rows == 2
    new, none = rows, rows + 1
    np.testing.assert_array_equal(recall, [[new, new], [new, 0], [1, new], [new, 1], [0, new]])
    np.testing.assert_array_equal(store, [[0, none], [1, 0], [1, none], [none] * 2, [none] * 2])


@given(
    arrays(np.int32, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=st.integers(0, 6)),
    st.integers(0, 2**32 - 1),
)
def test_every_visit_reads_what_its_client_wrote_last(client, seed):
    works = np.random.default_rng(seed).random(client.shape) < 0.7
    recall, store = memory_plan.plan(client, works)
    rows = memory_plan.rows_needed(client, works)
    held, latest = {}, {}
    for t in range(len(client)):
        here = [k for k in range(client.shape[1]) if works[t, k]]
        for k in here:
            i = client[t, k]
            assert recall[t, k] == rows if i not in latest else held[recall[t, k]] == latest[i]
        for k in here:
            latest[client[t, k]] = (client[t, k], t)
            if store[t, k] < rows:
                held[store[t, k]] = latest[client[t, k]]
    most = max(
        (
            sum(
                (client[: t + 1][works[: t + 1]] == i).any()
                and (client[t + 1 :][works[t + 1 :]] == i).any()
                for i in range(7)
            )
            for t in range(len(client))
        ),
        default=0,
    )
    assert rows == most


def test_a_crowd_of_which_few_come_twice_needs_few_rows():
    """350,000 clients in 1,500 rounds of 10: about 15,000**2 / 2 / 350,000 pairs of visits."""
    schedule = ccfl.random_schedule(0, 1500, 350_000, 10)
    assert schedule.memory_rows() < 200
    planned = schedule.remembered()
    assert planned.recall.max() == planned.memory_rows() - 1
    piece = planned.rounds(3, 5)
    np.testing.assert_array_equal(piece.recall, planned.recall[3:5])
