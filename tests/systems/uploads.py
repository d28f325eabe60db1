"""One round's uploads, of two arrays, and what an aggregator makes of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ccfl_jax import Arrivals

SLOTS = 9


def random_uploads(rng, counted, scale=1.0):
    """Normal numbers; nan where not counted."""
    wide = np.float64 if jax.config.jax_enable_x64 else np.float32
    slots = len(counted)
    uploads = {"a": rng.normal(size=(slots, 2, 2)), "b": rng.normal(size=(slots, 1))}
    for a in uploads.values():
        a *= scale
        a[~counted] = np.nan
    return {name: a.astype(wide) for name, a in uploads.items()}


def flat(uploads):
    """`[slots, d]` in double precision."""
    parts = [np.asarray(uploads[name], float) for name in sorted(uploads)]
    return np.concatenate([a.reshape(len(a), -1) for a in parts], axis=1)


def arrivals(counted, client=None):
    none = jnp.zeros(len(counted), jnp.int32)
    client = none if client is None else jnp.asarray(client, jnp.int32)
    counted = jnp.asarray(counted)
    return Arrivals(client, none, none, none, counted, counted.sum(dtype=jnp.int32))


@functools.cache
def _finish(aggregate):
    return jax.jit(aggregate.finish)


def aggregated(aggregate, uploads, counted, client=None, memory=None):
    """(pseudo-gradient `[d]`, memory) of stacked uploads."""
    if memory is None:
        memory = aggregate.init({name: a[0] for name, a in uploads.items()})
    delta, memory = _finish(aggregate)(uploads, arrivals(counted, client), memory)
    names = sorted(delta)
    return jnp.concatenate([delta[name].reshape(-1) for name in names]), memory
