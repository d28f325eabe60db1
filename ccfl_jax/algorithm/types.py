"""The shapes that the rooms agree on: type aliases, `Task` and `Aggregate`."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

Params = Any  # a pytree of arrays: one model
Batch = dict[str, jax.Array]  # gathered rows, each array [B, ...]
WorkUnit = Literal["epochs", "steps"]  # what a schedule's work counts
Normalise = Literal["steps", "epochs", "none"]  # what an upload is divided by


class Task(NamedTuple):
    """What is learnt: pure functions, written for one model and one batch; three are enough.

    Attributes:
        init: `init(key) -> params`.
        loss: `loss(params, batch, mask, key) -> scalar`: the mean over the real rows of `batch`
            (arrays `[B, ...]`); `mask` is bool `[B]`, False on padding.
        metrics: `metrics(params, batch, mask) -> {name: (sum, count)}` over the real rows; sums and
            counts of batches add up, so a metric of a data set is sum of sums / sum of counts.
        observe: `observe(params, batch, mask, key) -> (loss, metrics)`: both from one pass through
            the model; None where the two are not the same pass, as with dropout.
        descend: `descend(params, batch, mask, key, rate) -> (loss, metrics, params)`: one step of
            plain SGD, where the task has a faster way than a gradient and an update of every
            parameter; otherwise None.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Batch, jax.Array, jax.Array], jax.Array]
    metrics: Callable[[Params, Batch, jax.Array], dict[str, tuple[jax.Array, jax.Array]]]
    observe: Callable[..., tuple[jax.Array, dict]] | None = None
    descend: Callable[..., tuple[jax.Array, dict, Params]] | None = None


class Aggregate(NamedTuple):
    """How m uploads become one pseudo-gradient, adding up so that no upload has to be kept.

    Attributes:
        init: `init(params) -> memory`, what the aggregator remembers between rounds.
        start: `start(params) -> total`, zeros to add to; totals of devices are summed leaf by leaf.
        add: `add(total, uploads, counted) -> total`; leaves of `uploads` are `[lanes, ...]`,
            `counted` is bool `[lanes]`: what is not counted may hold anything.
        finish: `finish(total, participants, memory) -> (pseudo_gradient, memory)`; `participants`
            is the int32 number of uploads counted.
    """

    init: Callable[[Params], Any]
    start: Callable[[Params], Any]
    add: Callable[[Any, Params, jax.Array], Any]
    finish: Callable[[Any, jax.Array, Any], tuple[Params, Any]]
