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


def seeds(seed):
    return minibatches.shuffle_seeds(jax.random.key(seed))


def permutation(seed, size):
    return permute(seeds(seed), jnp.arange(size), jnp.int32(size))


@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 2, 3, 7, 64, 1000, 4097]))
def test_permute_is_a_permutation(seed, size):
    np.testing.assert_array_equal(np.sort(permutation(seed, size)), np.arange(size))


def test_permute_of_some_positions_is_part_of_the_whole():
    whole = permutation(5, 100)
    some = jnp.array([7, 99, 0])
    part = permute(seeds(5), some, jnp.int32(100))
    np.testing.assert_array_equal(part, whole[some])


def many(size, draws):
    """One permutation each, as the epochs of `draws` clients have them."""
    keys = jax.random.split(jax.random.key(11), draws)

    def epoch_three(key):
        step = jnp.int32(3)
        return minibatches.epoch_batch(minibatches.shuffle_seeds(key), step, jnp.int32(size), size)[
            0
        ]

    return np.asarray(jax.jit(jax.vmap(epoch_three))(keys))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_permutation_is_equally_likely(size):
    """Chi-square over all size! permutations: mean df, variance 2 df; 5 sigmas are a fault."""
    draws = 50_000
    counts = Counter(map(tuple, many(size, draws)))
    expected = draws / math.factorial(size)
    chi = sum((counts[p] - expected) ** 2 / expected for p in itertools.permutations(range(size)))
    df = math.factorial(size) - 1
    assert chi < df + 5 * math.sqrt(2 * df)


def test_places_and_neighbours_are_uniform_in_a_larger_set():
    size, draws = 37, 50_000
    drawn = many(size, draws)
    places = np.stack([np.bincount(drawn[:, j], minlength=size) for j in range(size)])
    chi = ((places - draws / size) ** 2 / (draws / size)).sum()
    df = (size - 1) ** 2
    assert chi < df + 5 * math.sqrt(2 * df)
    pairs = np.bincount(drawn[:, 5] * size + drawn[:, 6], minlength=size**2).reshape(size, size)
    expected = draws / (size * (size - 1))
    chi = ((pairs - expected) ** 2 / expected)[~np.eye(size, dtype=bool)].sum()
    df = size * (size - 1) - 1
    assert chi < df + 5 * math.sqrt(2 * df)


@pytest.mark.parametrize("size", [1, 3, 31, 32, 33, 64])
def test_an_epoch_visits_every_sample_once(size):
    batch_size, source = 32, seeds(0)
    steps = int(minibatches.steps_per_epoch(jnp.int32(size), batch_size))
    assert steps == math.ceil(size / batch_size)
    for epoch in range(2):
        seen = []
        for step in range(epoch * steps, (epoch + 1) * steps):
            positions, mask = epoch_batch(source, jnp.int32(step), jnp.int32(size), batch_size)
            assert positions.shape == mask.shape == (batch_size,)
            assert ((positions >= 0) & (positions < size)).all()
            seen.extend(np.asarray(positions)[np.asarray(mask)])
        assert sorted(seen) == list(range(size))


def epoch_order(source, epoch, size, batch_size):
    steps = math.ceil(size / batch_size)
    drawn = [
        epoch_batch(source, jnp.int32(epoch * steps + k), jnp.int32(size), batch_size)
        for k in range(steps)
    ]
    return np.concatenate([np.asarray(p)[np.asarray(m)] for p, m in drawn]).tolist()


def test_every_epoch_has_an_order_of_its_own_whatever_the_batch_size():
    one, other = seeds(1), seeds(2)
    orders = [epoch_order(s, e, 20, 7) for s in (one, other) for e in (0, 1)]
    assert len({tuple(o) for o in orders}) == 4
    assert epoch_order(one, 1, 20, 4) == orders[1]


def test_the_epochs_of_a_client_are_independent():
    """Chi-square over the pairs of orders that one client has in two epochs in a row."""
    draws, size = 50_000, 3
    keys = jax.random.split(jax.random.key(12), draws)

    def both(key):
        source = minibatches.shuffle_seeds(key)
        orders = [epoch_batch(source, jnp.int32(e), jnp.int32(size), size)[0] for e in (0, 1)]
        return jnp.concatenate(orders)

    counts = Counter(map(tuple, np.asarray(jax.jit(jax.vmap(both))(keys))))
    orders = list(itertools.permutations(range(size)))
    expected = draws / len(orders) ** 2
    chi = sum((counts[a + b] - expected) ** 2 / expected for a in orders for b in orders)
    df = len(orders) ** 2 - 1
    assert chi < df + 5 * math.sqrt(2 * df)


def test_random_batches_are_uniform_with_replacement():
    draws = np.concatenate(
        [
            np.asarray(
                minibatches.random_batch(jax.random.key(3), jnp.int32(k), jnp.int32(10), 500)[0]
            )
            for k in range(20)
        ]
    )
    counts = np.bincount(draws, minlength=10)
    chi = ((counts - 1000) ** 2 / 1000).sum()
    assert len(counts) == 10
    assert chi < 9 + 5 * math.sqrt(18)
