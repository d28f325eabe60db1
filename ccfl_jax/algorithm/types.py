"""Types of the whole package: aliases, `Task`, `Rule` and `Aggregate`."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

Array = jax.Array | np.ndarray
Params = Any  # a pytree of arrays: one model
Batch = Mapping[str, Any]  # name -> array [B, ...], gathered rows
WorkUnit = Literal["epochs", "steps"]  # what a schedule's work counts
Normalise = Literal["steps", "epochs", "none"]  # what an upload is divided by


class Task(NamedTuple):
    """The learning problem: pure functions of one model and one batch; the first three are needed.

    Attributes:
        init: `init(key) -> params`.
        loss: `loss(params, batch, mask, key) -> scalar`: the mean over the real rows of `batch`
            (arrays `[B, ...]`); `mask` is bool `[B]`, False on padding.
        metrics: `metrics(params, batch, mask) -> {name: (sum, count)}` over the real rows; sums and
            counts of batches add up, so a metric of a data set is sum of sums / sum of counts. One
            of them is "loss".
        observe: `observe(params, batch, mask, key) -> (loss, metrics)`: both from one pass through
            the model; None where the two are not the same pass, as with dropout.
        descend: `descend(params, batch, mask, key, rate) -> (loss, metrics, params)`: one step of
            plain SGD, where the task has a faster way than a gradient and an update of every
            parameter; otherwise None.
        labels: `(name, least, most)` of each array of labels: the loss of a row with another
            integer is nan. Data are checked for those before they are used.
        predict: `predict(params, x) -> [B, ...]`, the model's output in evaluation: logits, say;
            None where a task has none.

    Examples:
        The mean of numbers, by its squared error:

        >>> def loss(params, batch, mask, key):
        ...     return (mask * (params - batch["x"]) ** 2).sum() / mask.sum()

        >>> def metrics(params, batch, mask):
        ...     return {"loss": ((mask * (params - batch["x"]) ** 2).sum(), mask.sum())}

        >>> task = ccfl.Task(lambda key: jnp.zeros(()), loss, metrics)
        >>> ccfl.evaluate(task, jnp.float32(2.0), {"x": np.array([1.0, 3.0], np.float32)})
        {'loss': 1.0}
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Batch, jax.Array, jax.Array], jax.Array]
    metrics: Callable[[Params, Batch, jax.Array], dict[str, tuple[jax.Array, jax.Array]]]
    observe: Callable[..., tuple[jax.Array, dict]] | None = None
    descend: Callable[..., tuple[jax.Array, dict, Params]] | None = None
    labels: tuple[tuple[str, int, int], ...] = ()
    predict: Callable[[Params, Any], Any] | None = None


class Visit(NamedTuple):
    """One client's part in a round, before its work: all that a `Rule` sees, of one client.

    Attributes:
        client: int32 scalar, its id.
        round: int32 scalar, t, the round in which its upload arrives.
        staleness: int32 scalar, s.
        steps: int32 scalar, K_{t,i}, the local steps that it will take.
        size: int32 scalar, n_i, its samples.
        start: x_{t-s}, the model that it downloaded.
        current: x_t, the server's model when the upload arrives.
        message: what was sent with x_{t-s}; `()` where the rule sends none.
        memory: what the client kept of its last visit; `()` where the rule keeps nothing.
        key: PRNG key for the rule's own draws in this visit.

    Examples:
        A visit made by hand, to try a function of a rule:

        >>> x = jnp.array([1.0, 2.0])
        >>> visit = ccfl.Visit(
        ...     client=jnp.int32(7),
        ...     round=jnp.int32(9),
        ...     staleness=jnp.int32(3),
        ...     steps=jnp.int32(5),
        ...     size=jnp.int32(40),
        ...     start=x,
        ...     current=x,
        ...     message=(),
        ...     memory=(),
        ...     key=jax.random.key(0),
        ... )
        >>> float(ccfl.terms.polynomial(0.5)(visit, None))  # (1 + 3) ** -0.5
        0.5
    """

    client: jax.Array
    round: jax.Array
    staleness: jax.Array
    steps: jax.Array
    size: jax.Array
    start: Params
    current: Params
    message: Any
    memory: Any
    key: jax.Array


class End(NamedTuple):
    """What a client has after its local work.

    Attributes:
        upload: (begin - params) / divisor, the upload of Algorithm 3, divided as `normalise` says.
        info: its `LocalInfo`.
        params: x_K, the model after the last local step.
        optimiser: the local optimiser's last state.

    Examples:
        >>> def finish(visit, end):  # of a rule: clients send signs
        ...     return jax.tree.map(jnp.sign, end.upload), visit.memory

        >>> x = jnp.array([1.0, 2.0])
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> end = ccfl.End(upload=jnp.array([0.3, -2.0]), info=(), params=x, optimiser=())
        >>> print(finish(visit, end)[0])
        [ 1. -1.]
    """

    upload: Params
    info: Any
    params: Params
    optimiser: Any


class Weighted(NamedTuple):
    """An upload with its weight in the mean.

    Attributes:
        value: the upload times the weight.
        weight: float scalar, at least 0.

    Examples:
        >>> first, second = ccfl.Weighted(2.0 * 3.0, 3.0), ccfl.Weighted(6.0 * 1.0, 1.0)
        >>> total = jax.tree.map(jnp.add, first, second)  # as uploads are added up
        >>> float(total.value / total.weight)
        3.0
    """

    value: Any
    weight: jax.Array


class Rule(NamedTuple):
    r"""What clients remember, receive, do beside descending, and send: functions of one client.

    Every default is Algorithm 3 and adds nothing to the compiled program. What clients send is
    summed over them (or kept apart, `Aggregate.stacked`), so a rule is written for one client and
    holds for lanes and devices. A visit whose upload or memory is not finite is rejected, and
    changes no memory. Of a client's several visits in a round all read the same memory, and what
    the last counted one leaves is kept.

    Attributes:
        memory: `memory(params) -> memory`, a client's before its first visit, from x_0. With any
            array in it, `State.clients` holds one for each client.
        shared: `shared(memory) -> part`: of this part the server knows the mean over all n clients,
            whoever takes part: SCAFFOLD's c, FedDyn's h, MIFA's table.
        message: `message(mean, state) -> message`, sent out and kept in the history with every
            global model; of that mean and the `State` of that model, whose history lacks it.
        begin: `begin(visit) -> params`, the model that the local work starts from.
        local: `local(visit, optimiser) -> optimiser`; an optax optimiser, or the rate of plain SGD.
        finish: `finish(visit, end) -> (upload, memory)`; the upload is any pytree of numbers, the
            memory like `visit.memory`, which is returned as it is by a rule that keeps none.
        combine: `combine(delta, mean, state) -> pseudo_gradient`, of what the aggregator made, that
            mean after this round's visits, and the `State` before them.

    Examples:
        Clients that count their visits, and work less hard in each:

        >>> def local(visit, optimiser):
        ...     return optax.sgd(0.1 / (1 + visit.memory))

        >>> rule = ccfl.Rule(
        ...     memory=lambda params: jnp.zeros(()),
        ...     local=local,
        ...     finish=lambda visit, end: (end.upload, visit.memory + 1),
        ... )
        >>> train, test, clients = ccfl.data.synthetic(num_clients=4)
        >>> data = ccfl.FederatedData.from_indices(train, clients)
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=20, num_clients=4, buffer_size=2)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedsgd(1.0), rule=rule)
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=4)
        >>> state, _ = ccfl.run_rounds(simulation.round, state, schedule, data)
        >>> print(state.clients, np.bincount(schedule.client.ravel()))
        [ 8.  7. 11. 14.] [ 8  7 11 14]
    """

    memory: Callable[[Params], Any] = lambda params: ()
    shared: Callable[[Any], Any] = lambda memory: ()
    message: Callable[[Any, Any], Any] = lambda mean, state: ()
    begin: Callable[[Visit], Params] = lambda visit: visit.start
    local: Callable[[Visit, Any], Any] = lambda visit, optimiser: optimiser
    finish: Callable[[Visit, End], tuple[Any, Any]] = lambda visit, end: (end.upload, visit.memory)
    combine: Callable[[Any, Any, Any], Params] = lambda delta, mean, state: delta


class Arrivals(NamedTuple):
    """A round's uploads, one entry a slot of the buffer, `[slots]`.

    Attributes:
        client: int32, who sent it.
        staleness: int32, s.
        steps: int32, K_{t,i}; 0 where nobody did work.
        samples: int32, samples processed.
        counted: bool, whether it is part of the pseudo-gradient: present, with work, and finite.
        participants: int32 scalar, how many are counted.

    Examples:
        A server gets them as an extra argument; this one takes smaller steps of stale uploads:

        >>> two = jnp.ones(2, jnp.int32)
        >>> arrivals = ccfl.Arrivals(
        ...     client=jnp.array([4, 7]),
        ...     staleness=jnp.array([0, 3]),
        ...     steps=two,
        ...     samples=20 * two,
        ...     counted=two > 0,
        ...     participants=two.sum(),
        ... )
        >>> server = ccfl.systems.slower_when_stale(learning_rate=1.0)
        >>> update, _ = server.update(
        ...     jnp.float32(6.0), server.init(jnp.zeros(())), arrivals=arrivals
        ... )
        >>> float(update)  # a third
        2.0
    """

    client: jax.Array
    staleness: jax.Array
    steps: jax.Array
    samples: jax.Array
    counted: jax.Array
    participants: jax.Array


class Aggregate(NamedTuple):
    """How m uploads become one pseudo-gradient.

    Attributes:
        init: `init(params) -> memory`, the aggregator's state between rounds.
        finish: `finish(total, arrivals, memory) -> (pseudo_gradient, memory)`; `total` is the sum
            of the counted uploads, shorter floats as float32; with `stacked` all uploads
            `[slots, ...]`, of which those not counted may hold anything, nan too.
        stacked: whether `finish` needs all uploads at once. Otherwise they are summed as they come,
            and no more of them exist at a time than lanes.

    Examples:
        The sum of uploads over the root of their number:

        >>> def finish(total, arrivals, memory):
        ...     return jax.tree.map(lambda a: a / arrivals.participants**0.5, total), memory

        >>> aggregate = ccfl.Aggregate(init=lambda params: (), finish=finish)
        >>> four = jnp.ones(4, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(4), 0 * four, four, four, four > 0, four.sum())
        >>> float(aggregate.finish(jnp.float32(6.0), arrivals, ())[0])
        3.0
    """

    init: Callable[[Params], Any]
    finish: Callable[[Any, Arrivals, Any], tuple[Params, Any]]
    stacked: bool = False
