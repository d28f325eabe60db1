"""Epsilon against closed forms, and against the moments accountant."""

import sys

import numpy as np
import pytest
from refusal import refused
from scipy import optimize, special, stats

import ccfl_jax as ccfl
from ccfl_jax import systems

DELTA = 1e-5


@pytest.fixture
def library():
    return pytest.importorskip("dp_accounting")


def gaussian(sigma, delta=DELTA):
    """One Gaussian release: the exact curve of Balle and Wang (2018)."""

    def excess(eps):
        cdf = stats.norm.cdf
        upper = cdf(0.5 / sigma - eps * sigma)
        return upper - np.exp(eps) * cdf(-0.5 / sigma - eps * sigma) - delta

    return optimize.brentq(excess, 1e-9, 60)


def sampled_once(rate, sigma):
    """One sampled release: H((1-q) P0 + q P1 || P0) at e^eps is q times that of P1, P0 at
    (e^eps - 1 + q) / q."""
    return np.log1p(rate * np.expm1(gaussian(sigma, DELTA / rate)))


def moments(rate, rounds, sigma):
    """The accountant of Renyi divergences (Mironov et al., 2019; Canonne et al., 2020)."""
    costs = []
    for order in range(2, 200):
        k = np.arange(order + 1)
        terms = (
            np.log(special.comb(order, k)) + special.xlog1py(order - k, -rate)
            + special.xlogy(k, rate) + (k**2 - k) / (2 * sigma**2)
        )  # fmt: skip
        cost = rounds * special.logsumexp(terms) / (order - 1)
        costs.append(cost + np.log1p(-1 / order) - np.log(DELTA * order) / (order - 1))
    return min(costs)


def schedule(clients, present=None):
    client = np.array(clients, np.int32)
    present = np.ones_like(client, bool) if present is None else np.array(present)
    return ccfl.Schedule(client, client * 0, np.ones_like(client), present)


def test_a_schedule_is_one_gaussian_release(library):
    once = schedule([[0, 1], [2, 3]])
    found = systems.epsilon_of_schedule(once, 2.0, DELTA)
    np.testing.assert_allclose(found, gaussian(2.0), rtol=1e-6)
    # Twice in a round moves its sum by two clips, as much as four rounds.
    twice, four = schedule([[0, 0], [1, 2]]), schedule([[5, 0], [5, 1], [5, 2], [5, 3]])
    for one in (twice, four):
        found = systems.epsilon_of_schedule(one, 2.0, DELTA)
        np.testing.assert_allclose(found, gaussian(1.0), rtol=1e-6)
    absent = schedule([[0, 0], [1, 2]], [[True, False], [True, True]])
    found = systems.epsilon_of_schedule(absent, 2.0, DELTA)
    np.testing.assert_allclose(found, gaussian(2.0), rtol=1e-6)
    assert systems.epsilon_of_schedule(once, 0.0, DELTA) == np.inf
    nobody = schedule([[0, 1]], [[False, False]])
    assert systems.epsilon_of_schedule(nobody, 1.0, DELTA) == 0


def prefix_nodes(t):
    """The rounds of the nodes that the first t rounds are made of."""
    nodes, start = [], 0
    for level in reversed(range(t.bit_length())):
        if t >> level & 1:
            nodes.append((start, start + (1 << level)))
            start += 1 << level
    return nodes


@pytest.mark.parametrize("rounds", [1, 4, 11, 16])
def test_a_tree_moves_by_the_nodes_of_its_prefixes(library, rounds):
    rng = np.random.default_rng(rounds)
    client, present = rng.integers(0, 6, (rounds + 2, 3)), rng.random((rounds + 2, 3)) < 0.8
    present[[0, -1]] = False  # no steps of the server
    present[1:-1, 0] = True
    nodes = {node for t in range(1, rounds + 1) for node in prefix_nodes(t)}
    come = np.array([((client == i) & present).sum(axis=1)[1:-1] for i in range(6)])
    squares = [sum(own[a:b].sum() ** 2 for a, b in nodes) for own in come]
    found = systems.epsilon_of_schedule(schedule(client, present), 20.0, DELTA, tree=True)
    np.testing.assert_allclose(found, gaussian(20 / max(squares) ** 0.5), rtol=1e-6)


def test_sampling(library):
    everybody = systems.epsilon_of_sampling(1.0, 10, 2.0, DELTA)
    np.testing.assert_allclose(everybody, gaussian(2 / 10**0.5), rtol=1e-6)
    for rate, sigma in ((0.1, 1.0), (0.5, 2.0)):
        found, exact = systems.epsilon_of_sampling(rate, 1, sigma, DELTA), sampled_once(rate, sigma)
        assert exact - 1e-9 < found < exact * 1.01 + 1e-3
    for rate, rounds, sigma in ((0.01, 1000, 1.0), (0.1, 50, 2.0)):
        found, bound = (f(rate, rounds, sigma) for f in (accounted, moments))
        assert 0.7 * bound < found < bound
    assert systems.epsilon_of_sampling(0.1, 10, 2.0, DELTA) < everybody / 5
    assert systems.epsilon_of_sampling(0.5, 1, 0.0, DELTA) == np.inf


def accounted(rate, rounds, sigma):
    return systems.epsilon_of_sampling(rate, rounds, sigma, DELTA)


def test_accounting_refuses_what_it_cannot_do(monkeypatch):
    once, sampling = schedule([[0]]), systems.epsilon_of_sampling
    refused("rate: expected a finite number > 0 and <= 1, found 0", sampling, 0, 1, 1, DELTA)
    refused("rounds: expected an integer >= 1, found 0", sampling, 0.5, 0, 1, DELTA)
    noise = "noise_multiplier: expected a finite number >= 0, found -1"
    refused(noise, sampling, 0.5, 1, -1, DELTA)
    refused(noise, systems.epsilon_of_schedule, once, -1, DELTA)
    refused("schedule: expected a ccfl.Schedule, found 3", systems.epsilon_of_schedule, 3, 1, DELTA)
    message = "delta: expected a finite number > 0 and < 1, found 0"
    refused(message, systems.epsilon_of_schedule, once, 1, 0)
    refused("delta: expected a finite number > 0 and < 1, found 1", sampling, 0.5, 1, 1, 1)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    message = "dp_accounting: expected its package (pip install 'ccfl_jax[privacy]'), found ..."
    refused(message, sampling, 0.5, 1, 1, DELTA, kind=ImportError)
    refused(message, systems.epsilon_of_schedule, once, 1, DELTA, kind=ImportError)
