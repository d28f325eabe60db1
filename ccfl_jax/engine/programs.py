"""Compiled programs of a user's functions, each kept as long as its function is."""

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax

# function -> (body, options) -> the jitted function, which has only a weak reference to it.
_kept: weakref.WeakKeyDictionary[Callable, dict] = weakref.WeakKeyDictionary()


def compiled(body: Callable, function: Callable, **options: Any) -> Callable:
    """`jax.jit` of `body(function, ...)`: the same one in every call, dropped with `function`.

    As a static argument the function would stay, and with it every program and all that it closes
    over, until the process ends.

    Args:
        body: a function of a module.
        function: a round, or what builds one; a task's metrics.
        options: of `jax.jit`, hashable.
    """
    if not isinstance(function, types.FunctionType):
        # A method is a new object in each call, and others may have no weak references.
        return _of_an_object(body, function, tuple(options.items()))
    held, own = weakref.ref(function), _kept.setdefault(function, {})
    key = (body, *options.items())
    if key not in own:
        own[key] = jax.jit(lambda *args: body(held(), *args), **options)
    return own[key]


@functools.cache
def _of_an_object(body: Callable, function: Callable, options: tuple) -> Callable:
    return jax.jit(functools.partial(body, function), **dict(options))
