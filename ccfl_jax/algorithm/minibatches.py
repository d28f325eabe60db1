"""Minibatches: which of a client's samples form which batch, as functions of a PRNG key.

Positions count within the client, 0 <= position < size. Nothing is padded to the largest client and
no permutation is kept, so clients of any size, and any number of them, cost the same per step.
"""

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm.types import Array

# One sample's place differs from uniform by about sqrt(size) / 2**(rounds / 2): nothing visible.
_SHUFFLE_ROUNDS = 48


def shuffle_seeds(key: jax.Array) -> jax.Array:
    """Two words uint32 `[2]` that all shuffles of a client in its round derive from.

    A hash of the key's own words: a draw from it would take as long as a small model's gradient.
    """
    a, b = jax.random.key_data(key)[:2]
    return _mix(jnp.stack([a + _mix(b), b + _mix(a + jnp.uint32(0x9E3779B9))]))


def epoch_batch(
    seeds: jax.Array, step: jax.Array, size: jax.Array, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Batch of one step when local work is epochs: every sample once per epoch, in a fresh order.

    An epoch has ceil(size / B) steps; its last batch may be short and is then padded.

    Args:
        seeds: uint32 `[2]`, of the client in this round, by `shuffle_seeds`.
        step: int32 scalar, counted from the start of the round.
        size: int32 scalar, the client's samples, at least 1.
        batch_size: B.

    Returns:
        Positions int32 `[B]` and mask bool `[B]`, False on padding; padding repeats the batch's
        first sample.
    """
    epoch, batch = jnp.divmod(step, steps_per_epoch(size, batch_size))
    first = batch * batch_size
    places = first + jnp.arange(batch_size)
    mask = places < size
    order = _mix(seeds + epoch.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
    return permute(order, jnp.where(mask, places, first), size), mask


def random_batch(
    key: jax.Array, step: jax.Array, size: jax.Array, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Batch of one step when local work is steps: B samples, uniformly with replacement.

    As `epoch_batch`, but from a PRNG key of the client in its round; the mask is True throughout.
    """
    positions = jax.random.randint(jax.random.fold_in(key, step), (batch_size,), 0, size)
    return positions, jnp.ones((batch_size,), bool)


def steps_per_epoch(size: Array, batch_size: int) -> Array:
    """ceil(size / B): the last short batch is kept."""
    return -(-size // batch_size)


def permute(seeds: jax.Array, position: jax.Array, size: jax.Array) -> jax.Array:
    """Entries `position` of a random permutation of 0..size-1 that is a function of `seeds`.

    The swap-or-not shuffle (Hoang, Morris, Rogaway, CRYPTO 2012): in each of its rounds position x
    and its mirror image (c - x) mod size are swapped or not, by a coin that the two share. So
    it is a permutation after every round, and only the positions needed are computed.

    Args:
        seeds: uint32 `[2]`.
        position: int32 `[B]`, each in 0..size-1.
        size: int32 scalar, at least 1.

    Returns:
        int32 `[B]`, distinct for distinct positions.
    """
    size = size.astype(jnp.uint32)
    # Two words, spread over the rounds by a hash: drawing two for each takes ten times as long.
    steps = jnp.arange(_SHUFFLE_ROUNDS, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    centres, coins = _mix(seeds[:, None] + steps[None])
    centres %= size

    def swap_or_not(shuffle_round: jax.Array, x: jax.Array) -> jax.Array:
        centre = centres[shuffle_round]
        mirror = jnp.where(x > centre, centre + size - x, centre - x)
        heads = _mix(jnp.maximum(x, mirror) ^ coins[shuffle_round]) >> 31 == 1
        return jnp.where(heads, mirror, x)

    # Partly unrolled: a loop of single rounds is many launches, none at all compiles for longer.
    x = position.astype(jnp.uint32)
    x = jax.lax.fori_loop(0, _SHUFFLE_ROUNDS, swap_or_not, x, unroll=16)
    return x.astype(jnp.int32)


def _mix(x: jax.Array) -> jax.Array:
    """A 32-bit hash whose every output bit depends on every input bit (the end of MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
