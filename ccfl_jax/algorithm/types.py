"""Types of the whole package: aliases, `Task` and `Aggregate`."""

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
        init: `init(params) -> memory`, the aggregator's state between rounds.
        start: `start(params) -> total`, zeros to add to; totals of devices are summed leaf by leaf.
        add: `add(total, uploads, counted) -> total`; leaves of `uploads` are `[lanes, ...]`,
            `counted` is bool `[lanes]`; uploads that are not counted may hold anything, nan too.
        finish: `finish(total, participants, memory) -> (pseudo_gradient, memory)`; `participants`
            is the int32 number of uploads counted.
    """

    init: Callable[[Params], Any]
    start: Callable[[Params], Any]
    add: Callable[[Any, Params, jax.Array], Any]
    finish: Callable[[Any, jax.Array, Any], tuple[Params, Any]]
