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
        finish: `finish(visit, end) -> (upload, memory)`; the upload is any pytree of numbers.
        combine: `combine(delta, mean, state) -> pseudo_gradient`, of what the aggregator made, that
            mean after this round's visits, and the `State` before them.
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
    """

    init: Callable[[Params], Any]
    finish: Callable[[Any, Arrivals, Any], tuple[Params, Any]]
    stacked: bool = False
