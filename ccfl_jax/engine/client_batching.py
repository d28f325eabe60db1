"""Client batching: the clients of a round over lanes and devices, here and nowhere else."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.client_update import LocalInfo
from ccfl_jax.data import FederatedData
from ccfl_jax.engine import load_balancing
from ccfl_jax.engine.state import State


class Slot(NamedTuple):
    """What a slot of the buffer asks of its client: int32, scalars or `[slots]`, but `memory`.

    Attributes:
        client: its id.
        start: the history slot of the model that it starts from.
        work: local epochs or steps; 0 in an absent slot.
        number: how many earlier slots of the round have the same client.
        staleness: versions between download and use; this and what follows `()` without a rule.
        steps: local steps.
        memory: what its client remembers.
    """

    client: Any
    start: Any
    work: Any
    number: Any
    staleness: Any = ()
    steps: Any = ()
    memory: Any = ()


class Report(NamedTuple):
    """What is kept of each slot, scalars or `[slots]`, and trees of those.

    Attributes:
        info: its `LocalInfo`.
        counted: bool, whether its upload is part of the pseudo-gradient.
        memory: what its client remembers now.
        upload: what it sent, where the aggregator needs all uploads at once; otherwise `()`.
    """

    info: LocalInfo
    counted: jax.Array
    memory: Any
    upload: Any


def add_up(
    visit: Callable,
    slots: Slot,
    steps: jax.Array,
    lanes: int | None,
    mesh: jax.sharding.Mesh | None,
    state: State,
    data: FederatedData,
) -> tuple[Any, Report]:
    """The sum of the counted slots' uploads, and each slot's report `[slots, ...]`.

    Slots advance in groups of `lanes` on each device, so no more uploads exist at a time.
    `visit(state, data, slot) -> (upload, Report)`, of one slot.
    """
    devices = 1 if mesh is None else mesh.size
    spread = partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    # Slots bring their memories: read within the loop, XLA would copy all of them in every round.
    world = (state._replace(clients=()), data)
    if lanes is None:
        # Seen as each device sees it below, so that JAX traces it once.
        one, first = spread(visit) if devices > 1 else visit, jax.tree.map(lambda a: a[0], slots)
        recurrent = partial(load_balancing.is_recurrent, one, *world, first)
        shape = optax.tree.size(state.params), len(steps), devices
        lanes = load_balancing.lanes(jax.default_backend(), *shape, recurrent)
    groups, costs = load_balancing.groups(steps, min(lanes, len(steps)))
    world, run_groups = (groups, slots, *world), partial(_run_groups, visit)
    if mesh is None or devices == 1:
        return run_groups(jnp.arange(len(groups)), len(groups), *world)
    axis = mesh.axis_names[0]
    plan, numbers = load_balancing.longest_first(costs, mesh.shape[axis])

    def on_device(plan: jax.Array, numbers: jax.Array, *world: Any) -> tuple[Any, Report]:
        device = jax.lax.axis_index(axis)
        own = run_groups(plan[device], numbers[device], *world)
        # One device reports a slot, the others zeros.
        return jax.tree.map(lambda a: jax.lax.psum(a, axis).astype(a.dtype), own)

    return spread(on_device)(plan, numbers, *world)


def _run_groups(
    visit: Callable,
    plan: jax.Array,
    number: int | jax.Array,
    groups: jax.Array,
    slots: Slot,
    state: State,
    data: FederatedData,
) -> tuple[Any, Report]:
    """One device's part: the first `number` groups of its `plan`, one after the other."""
    count, lanes = len(slots.client), groups.shape[1]
    visit_one = partial(visit, state, data)

    def run_group(k: jax.Array, carry: tuple) -> tuple:
        total, reports = carry
        group = groups[plan[k]]
        # Padding reads zeros: client 0 without work.
        own = jax.tree.map(lambda a: a.at[group].get(mode="fill", fill_value=0), slots)
        uploads, report = _together(visit_one, own, lanes)
        reports = jax.tree.map(lambda a, b: a.at[group].set(b, mode="drop"), reports, report)
        uploads = tree_util.masked_sum(tree_util.wide(uploads), report.counted)
        return jax.tree.map(jnp.add, total, uploads), reports

    upload, report = jax.eval_shape(visit_one, jax.tree.map(lambda a: a[0], slots))
    reports = jax.tree.map(lambda a: jnp.zeros((count, *a.shape), a.dtype), report)
    wide = jax.tree.map(lambda a: tree_util.at_least_float32(a.dtype), upload)
    total = jax.tree.map(lambda a, dtype: jnp.zeros(a.shape, dtype), upload, wide)
    return jax.lax.fori_loop(0, number, run_group, (total, reports))


def _together(visit: Callable, slots: Slot, lanes: int) -> tuple:
    """`visit` of every entry along a leading axis of length `lanes`."""
    if lanes > 1:
        return jax.vmap(visit)(slots)
    # Not a batch of one: a kernel without a leading axis keeps its fast convolution.
    alone = visit(jax.tree.map(lambda a: a[0], slots))
    return jax.tree.map(lambda a: a[None], alone)
