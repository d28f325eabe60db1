"""Comparing a model with another that computes the same: values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def compiled(task):
    """The task with each of its functions as one program."""
    return task._make(jax.jit(function) if callable(function) else function for function in task)


def normal(shape, seed=0, scale=1.0, dtype=np.float32):
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=shape), dtype)


def random_params(model, x, dtype=np.float32):
    """Parameters of the model's shapes, biases too, without the initialisers."""
    shapes, tree = jax.tree.flatten(jax.eval_shape(model.init, jax.random.key(0), x))
    return tree.unflatten([normal(s.shape, i, 0.3, dtype) for i, s in enumerate(shapes)])


def size(model, shape):
    """The number of parameters for inputs of this shape."""
    variables = jax.eval_shape(model.init, jax.random.key(0), np.zeros(shape, np.float32))
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


@functools.partial(jax.jit, static_argnums=0)
def value_and_pullback(apply, variables, x, weight):
    """The output and the gradients of `sum(weight * output)` for parameters and input."""
    out, pull = jax.vjp(apply, variables, x)
    return out, pull(weight)


def assert_close(got, want, tolerance):
    """Every array within `tolerance` of the largest entry of the wanted one."""
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance * max(1, np.abs(w).max()))


def assert_same_function(apply, reference, variables, x, tolerance=1e-5):
    weight = normal(jax.eval_shape(reference, variables, x).shape, 9, dtype=x.dtype)
    got = value_and_pullback(apply, variables, x, weight)
    assert_close(got, value_and_pullback(reference, variables, x, weight), tolerance)
