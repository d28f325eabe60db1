"""State, which the next round needs, and Info, which a person wants to see."""

from typing import Any, NamedTuple

import jax
import optax

from ccfl_jax.algorithm.model_history import History
from ccfl_jax.algorithm.types import Params


class State(NamedTuple):
    """What the next round needs.

    Attributes:
        params: x_t.
        server: the server's optax state.
        history: past global models, x_t among them.
        aggregate: the aggregator's state.
        round: int32 scalar, t, the next round.
        key: PRNG key, the same in every round; all local randomness derives from it.
        clients: what clients remember, `[num_clients, ...]` or the rows of a schedule's plan; `()`
            without a rule that remembers.
        shared: the sum over all clients of the part of it that the rule shares.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedams(0.05))
        >>> state = simulation.init(jax.random.key(0), history_length=6)
        >>> int(state.round), sum(leaf.size for leaf in jax.tree.leaves(state.params))
        (0, 610)
        >>> jax.tree.leaves(state.history)[0].shape  # six models, each at first the same
        (6, 10)
    """

    params: Params
    server: optax.OptState
    history: History
    aggregate: Any
    round: jax.Array
    key: jax.Array
    clients: Any = ()
    shared: Any = ()


class Info(NamedTuple):
    """What a person wants to see of a round; "returned" slots are present and did local work.

    Attributes:
        train_loss: float32 scalar, mean over the counted slots of their local training loss; nan
            without any.
        train_metrics: name -> float32 scalar, the task's metrics in the same way.
        participants: int32 scalar, slots counted in the pseudo-gradient.
        rejected: int32 scalar, returned slots left out because of a non-finite upload.
        finite: bool scalar, whether every number of x_{t+1} is finite.
        present: bool `[slots]`, returned slots.
        counted: bool `[slots]`, those of them that are part of the pseudo-gradient.
        staleness: int32 `[slots]`, versions between download and use.
        steps: int32 `[slots]`, local steps; 0 where absent.
        samples: int32 `[slots]`, samples processed; 0 where absent.

    Examples:
        >>> train, test, clients = ccfl.data.synthetic(num_clients=4)
        >>> data = ccfl.FederatedData.from_indices(train, clients)
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=20, num_clients=4, buffer_size=2)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedams(0.05), local=0.02)
        >>> state = simulation.init(jax.random.key(0), history_length=6)
        >>> _, info = ccfl.run_rounds(simulation.round, state, schedule, data)
        >>> info.train_loss.shape, info.steps.shape, int(info.rejected.sum())
        ((20,), (20, 2), 0)
    """

    train_loss: jax.Array
    train_metrics: dict[str, jax.Array]
    participants: jax.Array
    rejected: jax.Array
    finite: jax.Array
    present: jax.Array
    counted: jax.Array
    staleness: jax.Array
    steps: jax.Array
    samples: jax.Array
