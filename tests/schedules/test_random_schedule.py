"""The paper's random model, and cohorts of those who are available."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import assert_trees_equal
from refusal import refused

import ccfl_jax as ccfl

seeds = st.integers(0, 2**32 - 1)


@given(
    seeds, st.integers(1, 30), st.integers(0, 8), st.integers(1, 4), st.integers(1, 3), st.data()
)
def test_random_schedule_is_legal(seed, clients, delay, work, randomness, data):
    slots = data.draw(st.integers(1, clients))
    s = ccfl.random_schedule(seed, 15, clients, slots, delay, work, randomness)
    assert s.client.shape == s.staleness.shape == s.work.shape == s.present.shape == (15, slots)
    assert s.client.dtype == s.staleness.dtype == s.work.dtype == np.int32
    assert s.present.all() and s.present.dtype == bool
    assert ((s.client >= 0) & (s.client < clients)).all()
    assert all(len(set(row)) == slots for row in s.client)
    assert ((s.staleness >= 0) & (s.staleness <= np.minimum(np.arange(15), delay)[:, None])).all()
    assert ((s.work >= 1) & (s.work <= work * randomness)).all()


def chi_square(counts, expected):
    return ((counts - expected) ** 2 / expected).sum()


def test_random_schedule_follows_the_papers_distributions():
    """Uniform delays and work, inclusion probability m/n: each chi-square within 5 sigmas."""
    rounds, n, m, tau = 4000, 20, 5, 4
    s = ccfl.random_schedule(0, rounds, n, m, tau, local_work=3, randomness=2)
    late = s.staleness[tau:]
    delays = np.bincount(late.ravel(), minlength=tau + 1)
    assert len(delays) == tau + 1
    assert chi_square(delays, late.size / (tau + 1)) < tau + 5 * np.sqrt(2 * tau)
    work = np.bincount(s.work.ravel(), minlength=7)[1:]
    assert len(work) == 6 and chi_square(work, s.work.size / 6) < 5 + 5 * np.sqrt(10)
    visits = np.bincount(s.client.ravel(), minlength=n)
    assert (abs(visits - rounds * m / n) < 5 * np.sqrt(rounds * (m / n) * (1 - m / n))).all()
    pairs = sum(1 for row in s.client if {0, 1} <= set(row))
    p = m * (m - 1) / (n * (n - 1))
    assert abs(pairs - rounds * p) < 5 * np.sqrt(rounds * p)


def test_cohorts_change_between_rounds():
    s = ccfl.random_schedule(0, 20, 100, 10)
    assert len(np.unique(s.client)) >= 70


def test_one_choice_moves_no_other():
    base = ccfl.random_schedule(7, 30, 50, 5, max_delay=5, local_work=3)
    more_work = ccfl.random_schedule(7, 30, 50, 5, max_delay=5, local_work=6)
    punctual = ccfl.random_schedule(7, 30, 50, 5, max_delay=0, local_work=3)
    assert_trees_equal(base.replace(work=more_work.work), more_work)
    assert_trees_equal(base.replace(staleness=punctual.staleness), punctual)


def test_a_longer_schedule_begins_with_the_shorter_and_seeds_matter():
    short, long, other = (ccfl.random_schedule(*k, 30) for k in ((3, 40), (3, 100), (4, 40)))
    assert_trees_equal(short, long.rounds(0, 40))
    assert (short.client != other.client).any()


SEED = "seed: expected an integer from 0 to 4294967295, found "
AMOUNT = "local_work * randomness: expected an integer >= 1, found "
HERE, MASK = np.ones(10, bool), "available: expected bool (10,), found"


@pytest.mark.parametrize(("arguments", "message"), [
    ({"buffer_size": 11}, "buffer_size: expected at most the number of clients, 10, found 11"),
    ({"buffer_size": 0}, "buffer_size: expected an integer >= 1, found 0"),
    ({"max_delay": -1}, "max_delay: expected an integer >= 0, found -1"),
    ({"seed": 2**32}, SEED + "4294967296"),
    ({"seed": -1}, SEED + "-1"),
    ({"seed": 1.5}, SEED + "1.5"),
    ({"num_rounds": True}, "num_rounds: expected an integer >= 0, found True"),
    ({"randomness": 0.5}, AMOUNT + "3 * 0.5 = 1.5"),
    ({"randomness": float("nan")}, AMOUNT + "3 * nan = nan"),
    ({"local_work": 0}, "local_work: expected an integer >= 1, found 0"),
    ({"available": [HERE] * 2}, "available: expected a mask for each of 3 rounds, found 2"),
    ({"available": []}, "available: expected a mask for each of 3 rounds, found 0"),
    ({"available": [HERE[1:]] * 3}, f"{MASK} bool (9,) in round 0"),
    ({"available": [HERE * 1.0] * 3}, f"{MASK} float64 (10,) in round 0"),
])  # fmt: skip
def test_random_schedule_refuses(arguments, message):
    settings = {"seed": 0, "num_rounds": 3, "num_clients": 10, **arguments}
    refused(message, ccfl.random_schedule, **settings)


@pytest.mark.parametrize(("clients", "slots"), [(1, 1), (12, 12), (30, 5), (60_000, 7)])
def test_always_available_is_the_papers_model_bit_for_bit(clients, slots):
    """NumPy draws small and large shares of many in unlike ways: each must not see the masks."""
    everybody = [np.ones(clients, bool)] * 40
    plain = ccfl.random_schedule(3, 40, clients, slots)
    masked = ccfl.random_schedule(3, 40, clients, slots, available=everybody)
    assert_trees_equal(plain, masked)
    assert plain.num_clients == masked.num_clients == clients
    assert plain.work_unit is masked.work_unit is None


@given(seeds, st.floats(0, 1), st.integers(1, 6))
def test_a_cohort_is_of_those_available(seed, share, slots):
    present = np.random.default_rng(seed).random((12, 6)) < share
    source = iter([*present, "of no round"])
    s = ccfl.random_schedule(seed, 12, 6, slots, available=source)
    assert [*source] == ["of no round"]
    always = ccfl.random_schedule(seed, 12, 6, slots)
    for t, mask in enumerate(present):
        size = min(slots, mask.sum())
        assert s.present[t].tolist() == [True] * size + [False] * (slots - size)
        assert len({*s.client[t, :size]}) == size and mask[s.client[t, :size]].all()
    assert (s.client[~s.present] == 0).all()
    np.testing.assert_array_equal(s.staleness, always.staleness * s.present)
    np.testing.assert_array_equal(s.work, always.work * s.present)
    s.check()


def test_those_available_come_equally_often():
    """Three of five clients, two slots, each in with probability 2/3: within 5 sigmas."""
    mask, rounds = np.array([True, False, True, False, True]), 3000
    s = ccfl.random_schedule(0, rounds, 5, 2, available=[mask] * rounds)
    visits = np.bincount(s.client.ravel(), minlength=5)
    assert (visits[~mask] == 0).all()
    assert (abs(visits[mask] - rounds * 2 / 3) < 5 * np.sqrt(rounds * 2 / 9)).all()
