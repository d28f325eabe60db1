"""FedAvg (McMahan et al., 2017, arXiv:1602.05629) and its server momentum."""

import jax
import optax

from ccfl_jax.algorithm.terms import by_samples, weighted
from ccfl_jax.algorithm.types import Rule
from ccfl_jax.checks import check_known


def fedavg() -> Rule:
    r"""FedAvg's weights: :math:`\Delta_t = \sum_i n_i \Delta^i / \sum_i n_i`.

    With `normalise="none"`, the server `cc_fedavg()`, fixed work in epochs and no staleness it is
    the published method: x_{t+1} is the mean of the clients' models, weighted by their samples.
    Departure: n_i of the clients in the buffer; a stale client's difference is from the model that
    it started from.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.systems.fedavg()
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedavg(), 0.1, normalise="none", rule=rule)
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> end = ccfl.End(upload=jnp.array([3.0, -4.0]), info=(), params=x - 1, optimiser=())
        >>> upload, _ = rule.finish(visit, end)
        >>> float(upload.weight)  # of a client of 40 samples
        40.0
    """
    return weighted(by_samples)


def fedavgm(
    learning_rate: float | jax.Array = 1.0,
    b1: float | jax.Array = 0.9,
    nesterov: bool = False,
) -> optax.GradientTransformation:
    r"""FedAvgM's server (Hsu et al., 2019, arXiv:1909.06335): heavy-ball momentum.

    .. math:: v_t = \beta v_{t-1} + \Delta_t, \qquad x_{t+1} = x_t - \eta v_t

    Not damped, unlike `cc_fedavgm`, which is this with eta / (1 - beta) for eta.

    Args:
        learning_rate: eta, 1 in the paper.
        b1: beta, in [0, 1).
        nesterov: whether the step looks ahead, as its authors' code does.

    Raises:
        ValueError: for a number outside its range.

    Examples:
        >>> server = ccfl.systems.fedavgm(learning_rate=1.0, b1=0.5)
        >>> state = server.init(jnp.zeros(2))
        >>> for _ in range(2):  # the same pseudo-gradient twice
        ...     update, state = server.update(jnp.array([1.0, -4.0]), state)

        >>> print(update)  # -(1 + 0.5) of it
        [-1.5  6. ]
    """
    learning_rate = check_known("learning_rate", learning_rate)
    return optax.sgd(learning_rate, check_known("b1", b1, most=1, below=True), nesterov)
