"""Load balancing: which slots of a round advance together, and on which device.

The work of every slot is known before the round, so slots of similar work form groups (a masked
lane costs as much as the longest of its group), and groups go to devices longest first.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, jaxprs_in_params

# Parameters of the models that advance together on a device, and how many at most, by `lanes`.
_ON_CPU, _ON_ACCELERATOR = (50_000, 32), (2**28, None)


def lanes(
    backend: str,
    parameters: int,
    slots: int,
    devices: int,
    recurrent: Callable[[], bool] = lambda: False,
) -> int:
    """The default number of clients that advance together on a device.

    As many as have 50,000 parameters together on a CPU or 2**28 (1 GiB) on an accelerator, at
    least one, at most a device's share of the round's slots, and on a CPU at most 32. On a CPU a
    step of a tiny model is mostly the launching of its operations, which lanes share; larger models
    do not fit the cache, and convolutions of several clients are slow. Thousand useful samples a
    second, one core of a virtual machine, batch 10, one to four steps a client, medians of
    interleaved calls (JAX 0.10.2):

        model           parameters     1    4   16   64  256 lanes
        logistic 60            610   522  754  881  884  832
        mlp 60-64            4,554   278  406  443  405
        logistic 784         7,850   199  248  248  201
        mlp 64-200          15,010   186  297  233  200
        mlp 784-32          25,450   132  114  110   95
        mlp 784-200        159,010    33   24   22

    Many groups load two cores more evenly than few: with 1,000 slots of logistic 60, 24, 40, 63 and
    81 lanes gave 1,448, 1,433, 1,370 and 1,320 on both.

    A recurrent model on a CPU has one lane: a step of its loop has enough work, and a lane waits
    for the longest of its group. With 1, 2, 4 and 8 lanes, batch 10, sequences of 20, relative rate
    (the best of four): GRU 32 of 7,658 parameters 1, 1.17, 1.28, 1.37 with equal work and 1, 0.97,
    0.86, 0.55 with the paper's; GRU 64 of 20,650 1, 1.06, 1.15, 1.09 and 1, 0.89, 0.71, 0.42; LSTM
    64 of 25,258 1, 1.01, 1.03, 1 and 1, 0.85, 0.66, 0.39.

    A round needs about four models a lane of memory beside the state. The accelerators' number is
    derived from that, not measured: 80 GB hold it many times.
    """
    share = -(-slots // devices)
    together, most = _ON_CPU if backend == "cpu" else _ON_ACCELERATOR
    found = max(1, min(together // max(parameters, 1), share, most or share))
    # Asked only where it matters: the answer takes a trace of the visit.
    return 1 if found > 1 and backend == "cpu" and recurrent() else found


def is_recurrent(visit: Callable, *args: Any) -> bool:
    """Whether a client's visit has matrix products in a loop within the loop over its steps."""
    return _has_products(jax.make_jaxpr(visit)(*args).jaxpr, 0)


def _has_products(jaxpr: Jaxpr, loops: int) -> bool:
    """Whether it has matrix products in two loops at least; it is itself within `loops`."""
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        shape = getattr(equation.outvars[0].aval, "shape", ()) if equation.outvars else ()
        if name == "dot_general" and loops > 1 and len(shape) > 1:
            return True
        within = loops + (name in ("scan", "while"))
        if any(_has_products(inner, within) for inner in jaxprs_in_params(params)):
            return True
    return False


def groups(steps: jax.Array, lanes: int) -> tuple[jax.Array, jax.Array]:
    """Groups of `lanes` slots of similar work, the longest first.

    Args:
        steps: int32 `[slots]`, local steps of each slot.
        lanes: slots that advance together.

    Returns:
        Slot numbers int32 `[groups, lanes]`, padded with the number of slots; and the cost of each
        group int32 `[groups]`, the steps of its longest.
    """
    count = steps.shape[0]
    order = jnp.argsort(-steps).astype(jnp.int32)
    filled = jnp.pad(order, (0, -count % lanes), constant_values=count).reshape(-1, lanes)
    return filled, steps[filled[:, 0]]


def longest_first(costs: jax.Array, devices: int) -> tuple[jax.Array, jax.Array]:
    """Gives groups to devices: in order of cost, each to the device with the least work so far.

    Args:
        costs: int32 `[groups]`, descending.
        devices: their number.

    Returns:
        Group numbers int32 `[devices, groups]`, of which each device runs the first `counts`; and
        `counts` int32 `[devices]`.
    """

    def give(group: jax.Array, carry: tuple) -> tuple:
        plan, counts, loads = carry
        device = jnp.argmin(loads)
        plan = plan.at[device, counts[device]].set(group.astype(jnp.int32))
        # A group without a step still costs a little: spread those too.
        return plan, counts.at[device].add(1), loads.at[device].add(costs[group] + 0.01)

    none = jnp.zeros((devices, costs.shape[0]), jnp.int32), jnp.zeros(devices, jnp.int32)
    plan, counts, _ = jax.lax.fori_loop(0, costs.shape[0], give, (*none, jnp.zeros(devices)))
    return plan, counts
