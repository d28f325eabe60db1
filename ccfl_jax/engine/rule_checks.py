"""Checks of what the functions of a rule give, when a round is traced."""

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ccfl_jax.algorithm.types import Params, Rule, Visit
from ccfl_jax.checks import check_kind, one_line
from ccfl_jax.engine.method_checks import form, refuse, shown

_STEPS = optax.GradientTransformation | Real | jax.Array | np.ndarray


def named(rule: Rule) -> Rule:
    """A rule with the errors of its own functions as one line that names the function."""
    own = {n: f for n, f in rule._asdict().items() if f is not Rule._field_defaults[n]}
    return rule._replace(**{n: partial(_called_by_name, n, f) for n, f in own.items()})


def _called_by_name(name: str, function: Callable, *args: Any) -> Any:
    try:
        found = function(*args)
    except Exception as error:  # a user's own, of any kind
        takes = [*inspect.signature(Rule._field_defaults[name]).parameters]
        told = {n: tree for n, tree in zip(takes, args, strict=True) if n == "mean"}
        if isinstance(args[0], Visit):
            told |= {f"visit.{n}": getattr(args[0], n) for n in ("message", "memory")}
        about = ", ".join(f"{n} {shown(tree, 80)}" for n, tree in told.items())
        refuse(f"rule.{name}", ", ".join(takes) + (f" ({about})" if about else ""), error)
    if name == "local":
        check_kind("rule.local", found, _STEPS, "an optax optimiser or a number")
    return found


def stepped(update: Callable, delta: Any, state: Any, params: Params, **more: Any) -> tuple:
    """What a server's `update` gives for a pseudo-gradient, which is like the parameters.

    Or it is another tree that the server takes, as that of `dp_fedavg_adaptive` does; the same tree
    with other shapes would be broadcast.
    """
    wanted, found = _shapes(params), _shapes(delta)
    is_alike = jax.tree.structure(delta) == jax.tree.structure(params)
    if is_alike and found == wanted:
        return update(delta, state, params, **more)
    if not is_alike:
        with contextlib.suppress(Exception):  # a server's own, of any kind
            step = update(delta, state, params, **more)
            if form(step[0], "shape") == form(params, "shape"):
                return step
    differing = [
        (f"{wanted.get(path, 'nothing')} at {path or 'the top'}", found.get(path, "nothing"))
        for path in {**wanted, **found}
        if wanted.get(path) != found.get(path)
    ]
    own, other = [*differing, ("the same containers", "others")][0]
    raise ValueError(
        f"pseudo_gradient: expected {own}, as in the parameters, found {other} (it is the uploads "
        "of rule.finish, summed up by the aggregate and changed by rule.combine)"
    )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    name = partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name(path): jnp.shape(leaf) for path, leaf in named}


def check_finished(found: Any, memory: Any) -> tuple[Any, Any]:
    """What `rule.finish` gave, if it is an upload and a memory like `memory`, with its dtypes."""
    if type(found) is not tuple or len(found) != 2:
        kind = f"{len(found)} of them" if type(found) is tuple else type(found).__name__
        raise ValueError(f"rule.finish: expected a pair, upload and memory, found {kind}")
    kept, own = (
        (jax.tree.structure(tree), [jnp.shape(a) for a in jax.tree.leaves(tree)])
        for tree in (found[1], memory)
    )
    if kept != own:  # `jnp.where` would broadcast one shape to the other
        said, wanted = (one_line(f"{tree} of {shapes}") for tree, shapes in (kept, own))
        raise ValueError(
            f"rule.finish: expected a memory like that of rule.memory ({wanted}), found {said}"
        )
    return found[0], jax.tree.map(lambda a, old: jnp.asarray(a, old.dtype), found[1], memory)
