"""Device speeds: each distribution against its formula, populations, work that goes with speed."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused
from scipy import stats
from scipy.integrate import quad

from ccfl_jax.clock import speed

DRAWS = 100_000
# Dvoretzky, Kiefer, Wolfowitz: P(sup |F_n - F| > d) <= 2 exp(-2 n d^2), for any F. Here 1e-9.
KOLMOGOROV = math.sqrt(math.log(2 / 1e-9) / (2 * DRAWS))


def distances(values, cdfs):
    """sup |F_n - F| over the line for each F: beside a jump of F_n, before it and at it."""
    at, counts = np.unique(values, return_counts=True)
    reached = np.cumsum(counts) / len(values)
    before = np.concatenate([[0.0], reached[:-1]])
    below = np.nextafter(at, -np.inf)
    return [max(abs(reached - F(at)).max(), abs(before - F(below)).max()) for F in cdfs]


def law(distribution):
    return distribution.cdf, distribution.mean()


def clipped_pareto(shape, least, most):
    """The mean is the integral of P(X > x): least + that of (least / x)^shape up to most."""
    pareto = stats.pareto(shape, scale=least)
    mean = least + quad(lambda x: (least / x) ** shape, least, most)[0]
    return lambda x: np.where(x >= most, 1, pareto.cdf(x)), mean


def classes(concentration, ranges):
    """A mixture of uniform ones: which coordinate of Dir(3s, 2s, s) is the largest.

    The coordinates are Gamma(3s), Gamma(2s) and Gamma(s) over their sum.
    """
    a, b, c = (stats.gamma(k * concentration) for k in (3, 2, 1))

    def share(largest, one, other):
        return quad(lambda x: largest.pdf(x) * one.cdf(x) * other.cdf(x), 0, np.inf)[0]

    shares = np.array([share(a, b, c), share(b, a, c), share(c, a, b)])
    parts = [stats.uniform(low, high - low) for low, high in ranges]
    return lambda x: shares @ [part.cdf(x) for part in parts], shares @ np.mean(ranges, axis=1)


MILD, LARGE = ((1, 2), (3, 5), (5, 8)), ((1, 2), (3, 5), (50, 80))
DISTRIBUTIONS = {
    "constant": (speed.constant(0.7), lambda x: x >= 0.7, 0.7),
    "zero": (speed.constant(0), lambda x: x >= 0, 0.0),
    "uniform": (speed.uniform(1.5, 4), *law(stats.uniform(1.5, 2.5))),
    "exponential": (speed.exponential(3), *law(stats.expon(scale=3))),
    "FedScale": (speed.log_normal(), *law(stats.lognorm(0.6, scale=0.005 * math.e))),
    "log_normal": (speed.log_normal(-1, 0.3, 2), *law(stats.lognorm(0.3, scale=2 / math.e))),
    "FedBuff": (speed.half_normal(), *law(stats.halfnorm())),
    "half_normal": (speed.half_normal(0.5, 2), *law(stats.halfnorm(2, 0.5))),
    "Plato": (speed.pareto(), *clipped_pareto(1, 1, 60)),
    "a quarter clipped": (speed.pareto(2, 0.5, 1), *clipped_pareto(2, 0.5, 1)),
    "mild": (speed.three_classes(), *classes(1, MILD)),
    "large": (speed.three_classes(ranges=speed.LARGE), *classes(1, LARGE)),
    "fewer slow": (speed.three_classes(2), *classes(2, MILD)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_follow_their_formulas_and_no_others(name):
    distribution, _, mean = DISTRIBUTIONS[name]
    values = distribution(np.random.default_rng([0, 1]), DRAWS)
    assert values.shape == (DRAWS,) and values.dtype == np.float64
    found = distances(values, [cdf for _, cdf, _ in DISTRIBUTIONS.values()])
    near = {k: d for k, d in zip(DISTRIBUTIONS, found, strict=True) if d < 1.5 * KOLMOGOROV}
    assert near.keys() == {name} and near[name] <= KOLMOGOROV
    assert abs(values.mean() - mean) <= 5 * values.std() / math.sqrt(DRAWS) + 1e-12 * mean
    np.testing.assert_array_equal(values, distribution(np.random.default_rng([0, 1]), DRAWS))


def test_devices_have_streams_of_their_own():
    law = speed.exponential(1)
    drawn = speed.draw_devices(3, 50, law, law, law, task=law, extra=law)
    assert drawn.task is law and drawn.extra is law
    arrays = np.stack(drawn[:3])
    assert arrays.dtype == np.float64 and len(np.unique(arrays)) == arrays.size == 150
    other = speed.draw_devices(3, 50, law, speed.pareto(), law)
    np.testing.assert_array_equal(other.step, drawn.step)
    np.testing.assert_array_equal(other.upload, drawn.upload)
    assert (speed.draw_devices(4, 50, law).step != drawn.step).all()
    step_alone = speed.draw_devices(0, 4, speed.constant(2))
    np.testing.assert_array_equal(np.stack(step_alone[:3]), np.outer([2.0, 0.0, 0.0], np.ones(4)))
    assert step_alone.task is None and step_alone.extra is None


def test_slowness_is_the_share_that_is_faster_and_the_share_not_slower():
    expected = [[0.25, 0.75], [0, 0.25], [0.25, 0.75], [0.75, 1]]
    np.testing.assert_array_equal(speed.slowness(np.array([2, 1, 2, 7])), expected)


TIED = np.array([3.0, 1.0, 1.0, 5.0, 1.0, 9.0, 2.0])


def chi_square(counts):
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum()


@pytest.mark.parametrize("correlation", [-1, -0.6, 0, 0.3, 1])
@pytest.mark.parametrize("seconds", [TIED, np.ones(7)], ids=["unequal", "equal"])
def test_work_is_uniform_over_the_population(seconds, correlation):
    """7 clients do not divide into 4 amounts, and some tie; for each client where nothing tells
    them apart. Chi-squares within 5 sigmas."""
    clients = np.tile(np.arange(7), 20_000)
    rng = np.random.default_rng([5, 1])
    work = speed.correlated_work(rng, speed.slowness(seconds), clients, 4, correlation)
    assert work.shape == clients.shape and work.dtype == np.int32
    table = np.bincount(clients * 4 + work - 1, minlength=28).reshape(7, 4)
    assert table.sum() == work.size and chi_square(table.sum(axis=0)) < 3 + 5 * math.sqrt(2 * 3)
    if correlation == 0 or seconds is not TIED:
        assert chi_square(table) < 21 + 5 * math.sqrt(2 * 21)  # each client's total is given


@pytest.mark.parametrize("correlation", [-1, -0.3, 0, 0.8])
def test_rank_correlation_is_that_of_the_copula(correlation):
    """Spearman's 6 / pi arcsin(c / 2), within 5 / sqrt(n), its deviation at c = 0."""
    rng = np.random.default_rng([7, 1])
    seconds = rng.permutation(1000) + 1.0
    clients = np.tile(np.arange(1000), 100)
    work = speed.correlated_work(rng, speed.slowness(seconds), clients, 10**6, correlation)
    found = stats.spearmanr(seconds[clients], work).statistic
    assert abs(found - 6 / math.pi * math.asin(correlation / 2)) < 5 / math.sqrt(len(clients))


populations = st.lists(st.integers(0, 6), min_size=1, max_size=12)
mosts, seeds = st.integers(1, 40) | st.just(2**31 - 1), st.integers(0, 2**32 - 1)


@given(populations, mosts, st.floats(-1, 1), seeds, st.sampled_from([0, 1, 20]))
def test_work_is_legal_and_takes_the_same_draws(seconds, most, correlation, seed, repeats):
    seconds = np.array(seconds)
    clients = np.tile(np.arange(len(seconds)), repeats)
    left = set()
    for c in (correlation, 1.0, -1.0):
        rng = np.random.default_rng([seed, 1])
        work = speed.correlated_work(rng, speed.slowness(seconds), clients, most, c)
        assert work.dtype == np.int32 and work.shape == clients.shape
        assert np.all((work >= 1) & (work <= most))
        left.add(rng.random())
        if abs(c) == 1 and repeats:  # no slower client does less, or none does more
            groups = [c * work[seconds[clients] == t] for t in np.unique(seconds)]
            assert all(a.max() <= b.min() for a, b in itertools.pairwise(groups))
    assert len(left) == 1


def test_bounds_of_the_quantiles_are_finite_work():
    """U = 0 and U = 1, which rounding may bring: the least and the most, and no nan at c = 0."""
    ends, far = np.array([0.0, 1.0]), np.array([-40.0, 40.0])
    edge = SimpleNamespace(uniform=lambda low, high: ends, standard_normal=lambda shape: far)
    for correlation, expected in ((1, [1, 9]), (-1, [9, 1]), (0, [1, 9]), (0.5, [1, 9])):
        work = speed.correlated_work(edge, np.array([[0, 1]]), [0, 0], 9, correlation)
        np.testing.assert_array_equal(work, expected)


def devices(**changes):
    return speed.Devices(*np.zeros((3, 2)))._replace(**changes)


def drawn(*values, seed=0, clients=2):
    return speed.draw_devices(seed, clients, lambda rng, size: np.array(values))


def work(clients, most=2, correlation=0):
    rng, of_two = np.random.default_rng(0), speed.slowness([1.0, 2.0])
    return speed.correlated_work(rng, of_two, clients, most, correlation)


COUNT = "expected an integer from 1 to 2147483647, found "
PAIRS = "ranges: expected three pairs (low, high), found "


@pytest.mark.parametrize(("call", "message"), [
    (lambda: speed.constant(-1), "value: expected a finite number >= 0, found -1"),
    (lambda: speed.constant(True), "value: expected a finite number >= 0, found True"),
    (lambda: speed.constant(math.inf), "value: expected a finite number >= 0, found inf"),
    (lambda: speed.uniform(-1, 1), "low: expected a finite number >= 0, found -1"),
    (lambda: speed.uniform(2, 1), "high: expected a finite number >= 2, found 1"),
    (lambda: speed.exponential(0), "mean: expected a finite number > 0, found 0"),
    (lambda: speed.log_normal(math.nan), "mu: expected a finite number, found nan"),
    (lambda: speed.log_normal(1, 0), "sigma: expected a finite number > 0, found 0"),
    (lambda: speed.log_normal(1, 1, -1), "scale: expected a finite number > 0, found -1"),
    (lambda: speed.half_normal(-2), "sigma: expected a finite number > 0, found -2"),
    (lambda: speed.half_normal(1, -2), "least: expected a finite number >= 0, found -2"),
    (lambda: speed.pareto(0), "shape: expected a finite number > 0, found 0"),
    (lambda: speed.pareto(1, 0), "least: expected a finite number > 0, found 0"),
    (lambda: speed.pareto(1, 2, 1), "most: expected a finite number >= 2, found 1"),
    (lambda: speed.three_classes(0), "concentration: expected a finite ... > 0, found 0"),
    (lambda: speed.three_classes(1, ((1, 2),)), PAIRS + "((1, 2),)"),
    (lambda: speed.three_classes(1, ((1, 2), (3, 4), (5,))), PAIRS + "((1, 2), (3, 4), (5,))"),
    (lambda: speed.three_classes(1, ((1, 2), (3, 2), (5, 8))), "high of ranges: ... >= 3, found 2"),
    (lambda: drawn(seed=-1), "seed: expected an integer from 0 to 4294967295, found -1"),
    (lambda: drawn(clients=2.0), "num_clients: " + COUNT + "2.0"),
    (lambda: drawn(1.0), "step: expected numbers (2,), found float64 (1,)"),
    (lambda: drawn(True, False), "step: expected numbers (2,), found bool (2,)"),
    (lambda: drawn(1.0, math.nan), "step: expected finite numbers >= 0, found nan"),
    (lambda: drawn(1.0, -0.5), "step: expected finite numbers >= 0, found -0.5"),
    (lambda: speed.draw("a", lambda *_: np.array([np.inf]), None, 1), "a: expected ..., found inf"),
    (devices(step=np.zeros(0)).check, "step: expected at least one client, found none"),
    (devices(upload=np.zeros(3)).check, "upload: expected numbers (2,), found float64 (3,)"),
    (devices(download=np.array([0, -1])).check, "download: expected finite ..., found -1"),
    (lambda: speed.slowness([]), "seconds: expected at least one client, found none"),
    (lambda: speed.slowness([[1.0]]), "seconds: expected numbers (1,), found float64 (1, 1)"),
    (lambda: work([0], 2.0), "most_work: " + COUNT + "2.0"),
    (lambda: work([0], 2, 1.5), "correlation: expected ... >= -1 and <= 1, found 1.5"),
    (lambda: work([0.0]), "clients: expected integers, found float64"),
    (lambda: work([0, 2]), "clients: expected 0 to 1, found 0 to 2"),
    (lambda: work([-1, 0]), "clients: expected 0 to 1, found -1 to 0"),
])  # fmt: skip
def test_what_is_refused_is_named(call, message):
    refused(message, call)
