"""A simulation: the first state and the round of one method, from one call."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax

from ccfl_jax.algorithm.types import Aggregate, Normalise, Params, Rule, Task, WorkUnit
from ccfl_jax.engine.first_state import init_state
from ccfl_jax.engine.rounds import Local, RoundFn, build_round
from ccfl_jax.engine.state import State


class Simulation(NamedTuple):
    """What `run_rounds` needs of a method.

    Attributes:
        init: `init(key, history_length=1, num_clients=None, memories=None, params=None) -> State`,
            the state before round 0, as `init_state`.
        round: `round(state, slots, data) -> (state, info)`, as `build_round`.
        task: what is learnt.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedsgd(1.0), local=0.02)
        >>> state = simulation.init(jax.random.key(0), history_length=6)
        >>> simulation.task is task, int(state.round)
        (True, 0)
    """

    init: Callable[..., State]
    round: RoundFn
    task: Task


def simulation(
    task: Task,
    server: optax.GradientTransformation,
    local: Local | Callable[[jax.Array], Local] = 0.01,
    batch_size: int = 20,
    work_unit: WorkUnit | None = None,
    normalise: Normalise = "steps",
    aggregate: Aggregate | None = None,
    lanes: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
    rule: Rule | None = None,
) -> Simulation:
    """`init_state` and `build_round` of one method, which cannot disagree.

    Args:
        task, server, local, batch_size, work_unit, normalise, aggregate, lanes, mesh, rule: as
            for `build_round`.

    Raises:
        ValueError: as `build_round`.

    Examples:
        >>> train, test, clients = ccfl.data.synthetic(num_clients=4)
        >>> data = ccfl.FederatedData.from_indices(train, clients)
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=20, num_clients=4, buffer_size=2)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedams(0.05), local=0.02, batch_size=20)
        >>> state = simulation.init(jax.random.key(0), history_length=6)
        >>> state, info = ccfl.run_rounds(simulation.round, state, schedule, data)
        >>> round(ccfl.evaluate(task, state.params, test)["accuracy"], 1)
        0.8
    """

    def init(
        key: jax.Array,
        history_length: int = 1,
        num_clients: int | None = None,
        memories: int | None = None,
        params: Params | None = None,
    ) -> State:
        own = aggregate, rule, num_clients, memories, params
        return init_state(task, server, key, history_length, *own)

    round_fn = build_round(
        task, server, local, batch_size, work_unit, normalise, aggregate, lanes, mesh, rule
    )
    return Simulation(init, round_fn, task)
