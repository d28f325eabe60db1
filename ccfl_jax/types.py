"""The shapes that the rooms agree on: type aliases, `Task` and `Aggregate`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Params = Any  # a pytree of arrays: one model
Batch = dict[str, jax.Array]  # gathered rows, each array [B, ...]


class Task(NamedTuple):
    """What is learnt: three pure functions, written for one model and one batch.

    Attributes:
        init: `init(key) -> params`.
        loss: `loss(params, batch, mask, key) -> scalar`: the mean over the real rows of `batch`
            (arrays `[B, ...]`); `mask` is bool `[B]`, False on padding.
        metrics: `metrics(params, batch, mask) -> {name: (sum, count)}` over the real rows; sums and
            counts of batches add up, so a metric of a data set is sum of sums / sum of counts.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Batch, jax.Array, jax.Array], jax.Array]
    metrics: Callable[[Params, Batch, jax.Array], dict[str, tuple[jax.Array, jax.Array]]]


class Aggregate(NamedTuple):
    """How m uploads become one pseudo-gradient.

    Attributes:
        init: `init(params) -> state`, what the aggregator remembers between rounds.
        update: `update(uploads, present, state) -> (pseudo_gradient, counted, state)`; `uploads`
            leaves are `[slots, ...]`, `present` and `counted` are bool `[slots]`: the slots that
            hold an upload and those that went into the pseudo-gradient.
    """

    init: Callable[[Params], Any]
    update: Callable[[Params, jax.Array, Any], tuple[Params, jax.Array, Any]]
