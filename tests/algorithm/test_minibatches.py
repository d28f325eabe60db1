"""Index draws: permutations that are permutations, uniform ones, and batches that lose nothing."""

import itertools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax.algorithm import minibatches

permute = jax.jit(minibatches.permute)
epoch_batch = jax.jit(minibatches.epoch_batch, static_argnums=3)
DRAWS = 50_000


def seeds(seed):
    return minibatches.shuffle_seeds(jax.random.key(seed))


def permutation(seed, size):
    return permute(seeds(seed), jnp.arange(size), jnp.int32(size))


@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 2, 3, 64, 1000]))
def test_permute_is_a_permutation(seed, size):
    np.testing.assert_array_equal(np.sort(permutation(seed, size)), np.arange(size))


def test_permute_of_some_positions_is_part_of_the_whole():
    some = jnp.array([7, 99, 0])
    part = permute(seeds(5), some, jnp.int32(100))
    np.testing.assert_array_equal(part, permutation(5, 100)[some])


def many(size, *epochs):
    """The permutations of 50,000 clients in these epochs, one after another."""
    keys = jax.random.split(jax.random.key(11), DRAWS)

    def drawn(key):
        source = minibatches.shuffle_seeds(key)
        batches = [epoch_batch(source, jnp.int32(e), jnp.int32(size), size) for e in epochs]
        return jnp.concatenate([positions for positions, _ in batches])

    return np.asarray(jax.jit(jax.vmap(drawn))(keys))


def assert_uniform(counts, df):
    """Chi-square of the counts: mean df, variance 2 df; 5 sigmas are a fault."""
    counts, expected = np.asarray(counts), np.mean(counts)
    assert ((counts - expected) ** 2 / expected).sum() < df + 5 * math.sqrt(2 * df)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_permutation_is_equally_likely(size):
    counts, orders = Counter(map(tuple, many(size, 3))), itertools.permutations(range(size))
    assert_uniform([counts[order] for order in orders], math.factorial(size) - 1)


def test_the_epochs_of_a_client_are_independent():
    """All pairs of the orders that one client has in two epochs in a row."""
    counts, orders = Counter(map(tuple, many(3, 0, 1))), list(itertools.permutations(range(3)))
    assert_uniform([counts[a + b] for a in orders for b in orders], len(orders) ** 2 - 1)


def test_places_and_neighbours_are_uniform_in_a_larger_set():
    size, drawn = 37, many(37, 3)
    places = [np.bincount(drawn[:, j], minlength=size) for j in range(size)]
    assert_uniform(places, (size - 1) ** 2)
    pairs = np.bincount(drawn[:, 5] * size + drawn[:, 6], minlength=size**2).reshape(size, size)
    assert np.trace(pairs) == 0
    assert_uniform(pairs[~np.eye(size, dtype=bool)], size * (size - 1) - 1)


def epoch_order(source, epoch, size, batch_size):
    steps, order = math.ceil(size / batch_size), []
    assert minibatches.steps_per_epoch(size, batch_size) == steps
    for step in range(epoch * steps, (epoch + 1) * steps):
        positions, mask = epoch_batch(source, jnp.int32(step), jnp.int32(size), batch_size)
        assert positions.shape == mask.shape == (batch_size,)
        assert ((positions >= 0) & (positions < size)).all()
        order.extend(np.asarray(positions)[np.asarray(mask)].tolist())
    return order


@pytest.mark.parametrize("size", [1, 3, 31, 32, 33, 64])
def test_an_epoch_visits_every_sample_once(size):
    for epoch in range(2):
        assert sorted(epoch_order(seeds(0), epoch, size, 32)) == list(range(size))


def test_every_epoch_has_an_order_of_its_own_whatever_the_batch_size():
    one, other = seeds(1), seeds(2)
    orders = [epoch_order(s, e, 20, 7) for s in (one, other) for e in (0, 1)]
    assert len({tuple(o) for o in orders}) == 4
    assert epoch_order(one, 1, 20, 4) == orders[1]


def test_random_batches_are_uniform_with_replacement():
    steps = jnp.arange(20, dtype=jnp.int32)
    draw = jax.vmap(lambda k: minibatches.random_batch(jax.random.key(3), k, jnp.int32(10), 500))
    counts = np.bincount(np.ravel(draw(steps)[0]), minlength=10)
    assert len(counts) == 10
    assert_uniform(counts, 9)
