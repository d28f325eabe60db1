"""Checks of the parts of a method, when it is built: each is of its kind, and can step."""

import functools
import inspect
import re
from collections.abc import Callable
from numbers import Real
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Aggregate, Arrivals, Batch, Params, Rule, Task
from ccfl_jax.checks import check_kind, check_known, check_promotion, one_line
from ccfl_jax.data.arrays import held, held_dtype
from ccfl_jax.engine.state import State

_THREEFRY = "threefry2x32"


def check_key(key: jax.Array) -> None:
    """Raises ValueError for a key whose draws would depend on lanes and trials.

    Under `jax.vmap` the other generators draw from the first key of a batch alone.
    """
    try:
        found = str(jax.random.key_impl(key))
    except TypeError:
        raise ValueError(
            f"key: expected jax.random.key(seed), found {one_line(repr(key))}"
        ) from None
    if found != _THREEFRY:
        raise ValueError(f"key: expected one of {_THREEFRY}, found one of {found}")
    shape = jax.random.key_data(key).shape[:-1]
    if shape:
        raise ValueError(f"key: expected one key, found {shape} of them")


def as_a_round_takes_it(part: Any) -> Any:
    """A server or `local`: `optax.MultiSteps`, which is no transformation, as one; a number of
    NumPy as Python's, which promotes no parameters."""
    if isinstance(part, optax.MultiSteps):
        return part.gradient_transformation()
    return part.item() if isinstance(part, np.ndarray | np.generic) and not part.ndim else part


def check_params(params: Params) -> None:
    """Raises ValueError for parameters that are no floats: a step follows no gradient of others."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(f"params.{name}: expected floats, found {leaf.dtype}")


def check_local(task: Task, local: Any) -> None:
    """Raises ValueError for a `local` of `build_round` that is no optimiser, number or function.

    A function that makes an optimiser of a learning rate, as `optax.sgd`, is no function of the
    round: it would be called with the round as its rate.
    """
    found = repr(local)
    if callable(local) and not _takes_the_round(local):
        found = f"{getattr(local, '__name__', local)}, which is no function of the round alone"
    elif callable(local):
        local = as_a_round_takes_it(local(jnp.zeros((), jnp.int32)))
        found = f"one that gives {local!r}"
    if isinstance(local, optax.GradientTransformation):
        return check_step("local", task, local)
    if isinstance(local, Tracer) and not local.ndim:  # a rate that is not known yet
        return None
    rate: Any = local.item() if isinstance(local, jax.Array) and not local.ndim else local
    if not isinstance(rate, Real) or isinstance(rate, bool):
        raise ValueError(
            "local: expected an optax optimiser, a number, or a function of the round that gives "
            f"one, found {one_line(found)}"
        )
    check_known("local", float(rate))
    return None


def _takes_the_round(function: Callable) -> bool:
    """Whether it can be called with a round alone, and would not take that for something else."""
    own: Any = function
    while isinstance(own, functools.partial) or hasattr(own, "__wrapped__"):
        own = own.func if isinstance(own, functools.partial) else own.__wrapped__
    package, name = getattr(own, "__module__", None) or "", getattr(own, "__qualname__", "<locals>")
    # A schedule of optax is a function within one of its functions; the latter make things.
    is_a_maker = package.split(".")[0] in ("optax", "ccfl_jax") and "<locals>" not in name
    if is_a_maker or inspect.isclass(own):
        return False
    try:
        signature = inspect.signature(function)
        signature.bind(0)
    except ValueError:  # none is known
        return True
    except TypeError:
        return False
    return next(iter(signature.parameters)) not in ("learning_rate", "lr")


def check_kinds(task: Any, server: Any, aggregate: Any, rule: Any = None) -> None:
    """Raises ValueError unless each part of a method is what its name says, and JAX promotes."""
    check_promotion()
    check_kind("task", task, Task, "a ccfl.Task")
    check_kind("server", server, optax.GradientTransformation, "an optax transformation")
    check_kind("aggregate", aggregate, Aggregate | None, "a ccfl.Aggregate or None")
    check_kind("rule", rule, Rule | None, "a ccfl.Rule or None")


def check_step(name: str, task: Task, optimiser: optax.GradientTransformation) -> None:
    """Raises ValueError for a "server" or "local" that cannot step with what a round gives it.

    That is a gradient, parameters and the loss; for a "server" the round's arrivals and a key, for
    a "local" the loss as a function, too.
    """
    params = _parameters(task)
    params = jax.eval_shape(tree_util.wide, params) if name == "server" else params
    update = optax.with_extra_args_support(optimiser).update

    def step(params: Any) -> Any:
        state, more = optimiser.init(params), {"value": jnp.zeros(())}
        if name == "local":
            more |= {"grad": params, "value_fn": lambda params: jnp.zeros(())}
        else:
            whole, yes = jnp.zeros(1, jnp.int32), jnp.ones(1, bool)
            arrivals = Arrivals(whole, whole, whole, whole, yes, whole[0])
            more |= {"arrivals": arrivals, "key": jax.random.key(0)}
        return state, *update(params, state, params, **more)

    try:
        state, updates, following = jax.eval_shape(step, params)
    except Exception as error:  # an optimiser's own, of any kind
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(
            f"{name}: expected a transformation of a gradient, parameters and a value, found one "
            f"that cannot step ({reason})"
        ) from error
    if form(updates, "shape") != form(params, "shape"):
        raise ValueError(f"{name}: expected updates like the parameters, found other shapes")
    if form(following, "shape", "dtype") != form(state, "shape", "dtype"):
        raise ValueError(
            f"{name}: expected a state that keeps its shapes and dtypes, found others after a step"
        )


def check_functions(task: Task, *parts: Batch) -> None:
    """Raises ValueError for a task whose functions do not take such samples, or give something else
    than `Task` says; only shapes are computed."""
    params = _called("init", "a key", _parameters, task)
    check_params(params)
    batches = [
        {name: jax.ShapeDtypeStruct((2, *a.shape[1:]), held_dtype(a)) for name, a in part.items()}
        for part in parts
    ]
    for k, batch in enumerate(batches):
        if batch in batches[:k]:  # traced before: test samples are mostly as those to train on
            continue
        own = ", ".join(f"{name} {shown(a)}" for name, a in batch.items())
        mask, key = jax.ShapeDtypeStruct((2,), bool), jax.random.key(0)
        takes = f"parameters, a batch ({own}), its mask"
        loss = _called(
            "loss", f"{takes} and a key", jax.eval_shape, task.loss, params, batch, mask, key
        )
        if not _is_number(loss) or not jnp.issubdtype(loss.dtype, jnp.floating):
            raise ValueError(f"task.loss: expected one float, found {shown(loss)}")
        found = _called("metrics", takes, jax.eval_shape, task.metrics, params, batch, mask)
        if not isinstance(found, dict) or not all(map(_is_pair, found.values())):
            raise ValueError(f"task.metrics: expected {{name: (sum, count)}}, found {shown(found)}")
        if "loss" not in found:
            raise ValueError(
                f"task.metrics: expected loss among them, found {', '.join(found) or 'none'}"
            )


def _called(name: str, takes: str, function: Callable, *args: Any) -> Any:
    """What a function of a task gives; its errors as one line."""
    try:
        return function(*args)
    except Exception as error:  # a user's own, of any kind
        refuse(f"task.{name}", takes, error)


def refuse(name: str, takes: str, error: Exception) -> NoReturn:
    """Raises ValueError for an error within a user's function; one of our own lines as it is."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    if re.match(r"ValueError: [\w.]+: expected .*, found ", reason):
        raise error
    found = one_line(reason, 200)
    raise ValueError(f"{name}: expected a function of {takes}, found {found}") from error


def shown(tree: Any, most: int = 300) -> str:
    return one_line(str(jax.tree.map(lambda a: f"{a.dtype} {[*a.shape]}", tree)), most)


def _is_number(value: Any) -> bool:
    return getattr(value, "shape", None) == ()


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value))


def _parameters(task: Task) -> Params:
    """Shapes and dtypes of the parameters."""

    def init(key: jax.Array) -> Params:
        return held("params", task.init(key))

    try:
        return jax.eval_shape(init, jax.random.key(0))
    except TypeError:  # as JAX's own for what cannot be traced: it has to be run
        return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, init(jax.random.key(0))))


def form(tree: Any, *aspects: str) -> tuple:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [[getattr(leaf, aspect) for aspect in aspects] for leaf in leaves]


def check_state(
    server: optax.GradientTransformation, aggregate: Aggregate, rule: Rule, state: State
) -> None:
    """Raises ValueError for a state of another kind of server, aggregate, rule or generator."""
    check_key(state.key)
    parts = (
        ("server", "server", server.init, state.server),
        ("aggregate", "aggregate", aggregate.init, state.aggregate),
        ("rule", "clients", rule.memory, state.clients),
    )
    for part, name, init, found in parts:
        if jax.tree.structure(found) != jax.tree.structure(jax.eval_shape(init, state.params)):
            raise ValueError(
                f"state.{name}: expected what the round's {part} makes (`simulation` makes both), "
                f"found {type(found).__name__} of another structure"
            )
