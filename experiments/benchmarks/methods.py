"""What a workload may be trained with: CC-FedAvg, and the systems that are timed against it."""

from typing import NamedTuple

import optax

import ccfl_jax as ccfl
from ccfl_jax import systems


class Method(NamedTuple):
    """Parts of a round, as of `build_round`.

    Attributes:
        server, rule, aggregate: as there.
    """

    server: optax.GradientTransformation
    rule: ccfl.Rule | None = None
    aggregate: ccfl.Aggregate | None = None


def cc_fedavg(local_lr: float) -> Method:
    """Algorithm 3 and the mean, which the others are timed against."""
    del local_lr
    return Method(ccfl.cc_fedavg())


def scaffold(local_lr: float) -> Method:
    """SCAFFOLD: memories and messages of the model's size."""
    return Method(ccfl.cc_fedsgd(1.0), systems.scaffold(local_lr))


def feddyn(local_lr: float) -> Method:
    """FedDyn: memories, and two terms of the local loss."""
    del local_lr
    return Method(ccfl.cc_fedavg(), systems.feddyn(0.1))


def fedprox(local_lr: float) -> Method:
    """FedProx: one term of the local loss."""
    del local_lr
    return Method(ccfl.cc_fedavg(), systems.fedprox(0.01))


def median(local_lr: float) -> Method:
    """The median of every coordinate, which needs all uploads at once."""
    del local_lr
    return Method(ccfl.cc_fedavg(), aggregate=systems.median())


def trimmed_mean(local_lr: float) -> Method:
    """The mean of every coordinate without its extremes, which needs all uploads at once too."""
    del local_lr
    return Method(ccfl.cc_fedavg(), aggregate=systems.trimmed_mean(0.2))
