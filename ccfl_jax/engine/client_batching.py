"""Client batching: the clients of a round over lanes and devices, here and nowhere else."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from ccfl_jax.algorithm.client_update import LocalInfo
from ccfl_jax.algorithm.types import Aggregate, Array
from ccfl_jax.data import FederatedData
from ccfl_jax.engine import load_balancing
from ccfl_jax.engine.state import State


class Visit(NamedTuple):
    """What a slot of the buffer asks of its client: int32, scalars or `[slots]`.

    Attributes:
        client: its id.
        start: the history slot of the model that it starts from.
        work: local epochs or steps; 0 in an absent slot.
        number: how many earlier slots of the round have the same client.
    """

    client: Array
    start: Array
    work: Array
    number: Array


def add_up(
    visit: Callable,
    combine: Aggregate,
    visits: Visit,
    steps: jax.Array,
    lanes: int | None,
    mesh: jax.sharding.Mesh | None,
    state: State,
    data: FederatedData,
) -> tuple[Any, LocalInfo, jax.Array]:
    """The sum of all uploads, each slot's report, and whether it is counted, `[slots, ...]`.

    Slots advance in groups of `lanes` on each device, so no more uploads exist at a time.
    """
    if lanes is None:
        devices = 1 if mesh is None else mesh.size
        parameters = optax.tree.size(state.params)
        lanes = load_balancing.lanes(jax.default_backend(), parameters, len(steps), devices)
    groups, costs = load_balancing.groups(steps, min(lanes, len(steps)))
    world = (groups, visits, state, data)
    run_groups = partial(_run_groups, visit, combine)
    if mesh is None or mesh.size == 1:
        total, reports = run_groups(jnp.arange(len(groups)), len(groups), *world)
        return total, *reports
    axis = mesh.axis_names[0]
    plan, numbers = load_balancing.longest_first(costs, mesh.shape[axis])

    def on_device(plan: jax.Array, numbers: jax.Array, *world: Any) -> tuple:
        device = jax.lax.axis_index(axis)
        # One device reports a slot, the others zeros.
        return jax.lax.psum(run_groups(plan[device], numbers[device], *world), axis)

    total, (report, counted) = jax.shard_map(
        on_device, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )(plan, numbers, *world)
    return total, report, counted > 0


def _run_groups(
    visit: Callable,
    combine: Aggregate,
    plan: jax.Array,
    number: int | jax.Array,
    groups: jax.Array,
    visits: Visit,
    state: State,
    data: FederatedData,
) -> tuple[Any, tuple[LocalInfo, jax.Array]]:
    """One device's part: the first `number` groups of its `plan`, one after the other."""
    count, lanes = len(visits.client), groups.shape[1]
    visit_one = partial(visit, state, data)

    def run_group(k: jax.Array, carry: tuple) -> tuple:
        total, reports = carry
        group = groups[plan[k]]
        # Padding reads zeros: client 0 without work.
        slots = jax.tree.map(lambda a: a.at[group].get(mode="fill", fill_value=0), visits)
        uploads, report, counted = _together(visit_one, slots, lanes)
        reports = jax.tree.map(
            lambda a, b: a.at[group].set(b, mode="drop"), reports, (report, counted)
        )
        return combine.add(total, uploads, counted), reports

    shapes = jax.eval_shape(visit_one, jax.tree.map(lambda a: a[0], visits))[1:]
    reports = jax.tree.map(lambda a: jnp.zeros((count, *a.shape), a.dtype), shapes)
    return jax.lax.fori_loop(0, number, run_group, (combine.start(state.params), reports))


def _together(visit: Callable, slots: Visit, lanes: int) -> tuple:
    """`visit` of every entry along a leading axis of length `lanes`."""
    if lanes > 1:
        return jax.vmap(visit)(slots)
    # Not a batch of one: a kernel without a leading axis keeps its fast convolution.
    alone = visit(jax.tree.map(lambda a: a[0], slots))
    return jax.tree.map(lambda a: a[None], alone)
