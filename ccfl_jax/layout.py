"""Layout: which slots of a round advance together, and on which device.

The work of every slot is known before it starts, so slots are put into groups of similar work (a
masked lane costs as much as the longest of its group), and groups go to devices by longest work
first.
"""

import jax
import jax.numpy as jnp


def groups(steps: jax.Array, lanes: int) -> tuple[jax.Array, jax.Array]:
    """Groups of `lanes` slots of similar work, the longest first.

    Args:
        steps: int32 `[slots]`, local steps of each slot.
        lanes: slots that advance together.

    Returns:
        Slot numbers int32 `[groups, lanes]`, filled up with the number `slots`, which is none; and
        the cost of each group int32 `[groups]`, the steps of its longest.
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
        Group numbers int32 `[devices, groups]`, of which each device does the first so many; and
        how many int32 `[devices]`.
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
