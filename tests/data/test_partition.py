"""The partitioners."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from ccfl_jax import data as fd
from ccfl_jax.data.partition import _log_dirichlet, _softmax

BALANCED = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 1000))
# 1003 labels, 7 unbalanced classes.
UNEVEN = np.random.default_rng(2).choice(7, 1003, p=np.arange(1, 8) / 28)

labels_arrays = st.lists(st.integers(-2, 4), max_size=60).map(lambda v: np.array(v, np.int64))
seeds = st.sampled_from([0, 1, 7, 2**32 - 1])
alphas = st.sampled_from([1e-300, 1e-5, 0.01, 0.3, 1, 100.0, 1e300])
ways = st.sampled_from(["label", "client"])


def sizes_of(parts):
    return np.array([part.size for part in parts])


def assert_partition(parts, num_samples, num_clients):
    assert len(parts) == num_clients
    assert all(np.issubdtype(part.dtype, np.integer) and part.ndim == 1 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(num_samples))


@given(labels_arrays, st.integers(1, 12), seeds)
def test_iid_deals_every_sample_once(labels, num_clients, seed):
    parts = fd.partition_iid(labels, num_clients, seed)
    assert_partition(parts, labels.size, num_clients)
    assert np.ptp(sizes_of(parts)) <= 1


def test_iid_is_balanced():
    # 1003 = 13 * 77 + 2.
    assert sizes_of(fd.partition_iid(UNEVEN, 13, seed=3)).tolist() == [78] * 2 + [77] * 11


def test_iid_shuffles():
    parts = fd.partition_iid(np.repeat(np.arange(2), 500), 2, seed=0)
    # Hypergeometric: mean 250, standard deviation sqrt(500 / 2 / 2 * 500 / 999) = 7.9.
    assert abs((parts[0] < 500).sum() - 250) < 40


@given(labels_arrays, st.integers(1, 12), alphas, seeds, st.integers(0, 12), ways)
def test_dirichlet_deals_every_sample_once(labels, num_clients, alpha, seed, min_size, by):
    if num_clients * min_size > labels.size:
        message = f"...(need {num_clients * min_size}, have {labels.size})"
        refused(message, fd.partition_dirichlet, labels, num_clients, alpha, seed, min_size, by)
        return
    parts = fd.partition_dirichlet(labels, num_clients, alpha, seed, min_size, by)
    assert_partition(parts, labels.size, num_clients)
    assert sizes_of(parts).min() >= min_size
    assert by == "label" or np.ptp(sizes_of(parts)) <= 1


@pytest.mark.parametrize("by", ["label", "client"])
def test_same_seed_same_split_and_seed_zero_is_a_seed(by):
    def split(seed):
        return np.concatenate(fd.partition_dirichlet(BALANCED, 10, 0.5, seed, by=by))

    state = np.random.get_state()[1].copy()  # noqa: NPY002
    np.testing.assert_array_equal(split(0), split(0))
    assert (split(0) != split(1)).any()
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    first, second = (np.concatenate(fd.partition_iid(BALANCED, 10, seed)) for seed in (0, 1))
    assert (first != second).any()


@pytest.mark.parametrize("alpha", [1e-4, 5e-324, 1.7e308])
def test_proportions_are_finite_for_every_alpha(alpha):
    rng = np.random.default_rng(0)
    draws = np.array([_softmax(*_log_dirichlet(rng, alpha, np.full(10, 0.1))) for _ in range(2000)])
    assert np.isfinite(draws).all()
    np.testing.assert_allclose(draws.sum(axis=1), 1, atol=1e-6)
    # One class of ten in the limit of small alpha, all equal in that of large alpha.
    expected = 1.0 if alpha < 1 else 0.1
    np.testing.assert_allclose(draws.max(axis=1).mean(), expected, atol=2e-3)
    np.testing.assert_allclose(draws.mean(axis=0), 0.1, atol=0.03)


@pytest.mark.parametrize("by", ["label", "client"])
def test_two_clients_take_all_of_the_data_at_tiny_alpha(by):
    for seed in range(20):
        parts = fd.partition_dirichlet(UNEVEN, 2, 1e-5, seed, by=by)
        assert_partition(parts, 1003, 2)


@pytest.mark.parametrize("by", ["label", "client"])
def test_skew_falls_with_alpha(by):
    def mean_largest_share(alpha):
        splits = (fd.partition_dirichlet(BALANCED, 10, alpha, seed, by=by) for seed in range(5))
        counts = [np.bincount(BALANCED[part]) for parts in splits for part in parts if part.size]
        return np.mean([own.max() / own.sum() for own in counts])

    skew = [mean_largest_share(alpha) for alpha in (0.01, 0.1, 1, 100)]
    assert (np.diff(skew) < 0).all() and skew[1] >= 0.45 and skew[3] <= 0.15


def zeros_of_the_first(labels, num_clients, alpha, by, seeds):
    """How many labels 0 the first client has, for each seed."""
    splits = (fd.partition_dirichlet(labels, num_clients, alpha, s, 0, by) for s in range(seeds))
    return np.array([(labels[parts[0]] == 0).sum() for parts in splits])


# By label, the first of two classes is cut among all 5 clients: a client's share of it has the
# distribution Beta(0.7, 4 * 0.7). By client, the first of 4 draws 200 labels from
# q ~ Dir(2 * 3 * (1/4, 3/4)) with nothing used up yet: its share of class 0 has the variance
# v + (p (1 - p) - v) / 200, where v = p (1 - p) / (2 * 3 + 1).
@pytest.mark.parametrize(("by", "classes", "labels", "clients", "alpha", "mean", "variance"), [
    ("label", [0, 1], 1000, 5, 0.7, 1 / 5, 4 / 25 / (5 * 0.7 + 1)),
    ("client", [0, 1, 1, 1], 200, 4, 3.0, 1 / 4, 3 / 16 * (1 / 7 + (1 - 1 / 7) / 200)),
])  # fmt: skip
def test_shares_have_the_dirichlet_variance(by, classes, labels, clients, alpha, mean, variance):
    own = zeros_of_the_first(np.repeat(classes, labels), clients, alpha, by, 800) / labels
    assert abs(np.mean(own) - mean) < 5 * np.sqrt(variance / 800)
    assert 0.8 < np.var(own) / variance < 1.2


def test_draws_by_client_are_one_at_a_time_without_replacement():
    # At huge alpha, q = p = (1/4, 3/4); the first of two clients draws two labels. Class 0 has
    # one sample: it gets it first with 1/4, or second with 3/4 * 1/4, together 7/16.
    hits = zeros_of_the_first(np.array([1, 0, 1, 1]), 2, 1e12, "client", 2500)
    # Drawn from all four without replacement it were 1/2, six deviations more.
    assert abs(np.mean(hits) - 7 / 16) < 4 * np.sqrt(7 / 16 * 9 / 16 / 2500)


@given(labels_arrays, st.integers(1, 8), alphas, seeds)
def test_full_clients_get_nothing_of_later_classes(labels, num_clients, alpha, seed):
    parts = fd.partition_dirichlet(labels, num_clients, alpha, seed, min_size=0)
    held = np.zeros(num_clients, int)
    for value in np.unique(labels):
        counts = np.array([(labels[part] == value).sum() for part in parts])
        assert not counts[held * num_clients >= labels.size].any()
        held += counts


@pytest.mark.parametrize(("labels", "clients", "alpha", "least", "seed"), [
    *((UNEVEN, 30, 0.05, 20, seed) for seed in range(4)),
    (UNEVEN, 17, 1e-5, 59, 0),  # all of the 1003 samples
    (BALANCED, 10, 1.0, 1, 0),  # as drawn
])  # fmt: skip
def test_minimum_is_met_by_moving_from_the_largest(labels, clients, alpha, least, seed):
    drawn = fd.partition_dirichlet(labels, clients, alpha, seed, min_size=0)
    met = fd.partition_dirichlet(labels, clients, alpha, seed, min_size=least)
    expected = sizes_of(drawn)
    assert (expected.min() < least) == (labels is UNEVEN)
    while expected.min() < least:
        expected[expected.argmax()] -= 1
        expected[expected.argmin()] += 1
    np.testing.assert_array_equal(np.sort(sizes_of(met)), np.sort(expected))
    for before, after in zip(drawn, met, strict=True):
        # Each client only gave, only received, or was left alone.
        smaller, larger = sorted((before, after), key=len)
        assert np.isin(smaller, larger).all()


@pytest.mark.parametrize("by", ["label", "client"])
def test_impossible_minimum_is_refused_with_both_numbers(by):
    text = "num_clients: expected at most {}, found {} of at least {} samples (need {}, have {})"
    for samples, clients, least, most in ((1000, 100, 20, 50), (6, 10, 10, 0)):
        message = text.format(most, clients, least, clients * least, samples)
        labels = np.zeros(samples, int)
        refused(message, fd.partition_dirichlet, labels, clients, 0.5, 0, least, by)


GOOD = {"labels": np.arange(100) % 5, "num_clients": 4, "seed": 0}
SEED = "seed: expected an integer from 0 to 4294967295, found"
LABELS = "labels: expected a 1-D integer array, found"


@pytest.mark.parametrize(("change", "message"), [
    ({"alpha": 0}, "alpha: expected a number > 0, found 0"),
    ({"alpha": float("nan")}, "alpha: expected a finite number, found nan"),
    ({"alpha": "1"}, "alpha: expected a finite number, found '1'"),
    ({"num_clients": 0}, "num_clients: expected an integer >= 1, found 0"),
    ({"min_size": -1}, "min_size: expected an integer >= 0, found -1"),
    ({"by": "class"}, "by: expected 'label', 'client', found 'class'"),
    ({"seed": -1}, f"{SEED} -1"),
    ({"seed": 2**32}, f"{SEED} 4294967296"),
    ({"labels": np.zeros(100)}, f"{LABELS} float64 (100,)"),
    ({"labels": np.zeros((100, 1), int)}, f"{LABELS} int64 (100, 1)"),
])  # fmt: skip
def test_bad_arguments_are_refused_in_one_line(change, message):
    refused(message, fd.partition_dirichlet, **{**GOOD, "alpha": 0.5, **change})
    if change.keys() <= GOOD.keys():
        refused(message, fd.partition_iid, **{**GOOD, **change})


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50))
def test_natural_groups_by_client(ids):
    parts = fd.partition_natural(np.array(ids))
    assert_partition(parts, len(ids), max(ids) + 1)
    for client, part in enumerate(parts):
        assert (np.array(ids)[part] == client).all()


@pytest.mark.parametrize(("ids", "message"), [
    (np.zeros(0, int), "client_ids: expected at least one, 0 to ..., found none"),
    (np.array([0, -1]), "client_ids: expected at least one, 0 to ..., found -1 to 0"),
    (np.array([0.0]), "client_ids: expected a 1-D integer array, found float64 (1,)"),
])  # fmt: skip
def test_natural_refuses_what_are_no_client_numbers(ids, message):
    refused(message, fd.partition_natural, ids)
