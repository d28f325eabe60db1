r"""FedAdagrad, FedAdam, FedYogi (Reddi et al., 2021, arXiv:2003.00295) and FedAMS, as published.

Servers on undivided uploads (`normalise="none"`), fresh ones: m_t and v_t without bias correction,
:math:`x_{t+1} = x_t - \eta\, m_t / (\sqrt{v_t} + \tau)`, v_{-1} = tau**2, the least that the paper
allows. tau is tuned together with eta: where it is above the root, the method is momentum.
"""

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm.server_optimizers import (
    cc_fedadagrad,
    cc_fedadam,
    cc_fedams,
    scale_by_accumulator,
    scale_by_learning_rate,
)
from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import check_known

Number = float | jax.Array


def fedadagrad(
    learning_rate: optax.ScalarOrSchedule, b1: Number = 0.0, eps: Number = 1e-3
) -> optax.GradientTransformation:
    r"""FedAdagrad: :math:`v_t = v_{t-1} + \Delta_t^2`, without momentum.

    Args:
        learning_rate: eta.
        b1: beta_1, in [0, 1).
        eps: tau, above 0.

    Raises:
        ValueError: for a number outside its range.

    Examples:
        >>> server = ccfl.systems.fedadagrad(learning_rate=1.0, eps=0.5)
        >>> state = server.init(jnp.zeros(2))
        >>> update, state = server.update(jnp.array([0.5, -1.5]), state)  # a pseudo-gradient
        >>> print(np.array(update).round(3))
        [-0.414  0.721]
    """
    eps = check_known("eps", eps, above=True)
    return cc_fedadagrad(learning_rate, b1, eps, eps**2)


def fedadam(
    learning_rate: optax.ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.99,
    eps: Number = 1e-3,
) -> optax.GradientTransformation:
    r"""FedAdam: :math:`v_t = \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2`.

    Args:
        learning_rate: eta.
        b1, b2: beta_1 and beta_2, in [0, 1).
        eps: tau, above 0.

    Raises:
        ValueError: for a number outside its range.

    Examples:
        >>> server = ccfl.systems.fedadam(learning_rate=1.0, b1=0.5, b2=0.75, eps=0.25)
        >>> state = server.init(jnp.zeros(2))
        >>> update, state = server.update(jnp.array([0.5, -1.5]), state)  # a pseudo-gradient
        >>> print(np.array(update).round(3))
        [-0.431  0.728]
    """
    eps = check_known("eps", eps, above=True)
    return cc_fedadam(learning_rate, b1, b2, eps, eps**2)


def fedyogi(
    learning_rate: optax.ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.99,
    eps: Number = 1e-3,
) -> optax.GradientTransformation:
    r"""FedYogi: :math:`v_t = v_{t-1} - (1-\beta_2) \Delta_t^2\, \text{sign}(v_{t-1} - \Delta_t^2)`.

    Args, Raises: as for `fedadam`.

    Examples:
        >>> server = ccfl.systems.fedyogi(learning_rate=1.0, b1=0.5, b2=0.75, eps=0.25)
        >>> state = server.init(jnp.zeros(2))
        >>> update, state = server.update(jnp.array([0.5, -1.5]), state)  # a pseudo-gradient
        >>> print(np.array(update).round(3))
        [-0.414  0.721]
    """
    b2, eps = check_known("b2", b2, most=1, below=True), check_known("eps", eps, above=True)

    def accumulate(delta: Params, nu: Params, nu_hat: Params) -> tuple[Params, Params]:
        def grown(d: jax.Array, h: jax.Array) -> jax.Array:
            return (h - (1 - b2) * d**2 * jnp.sign(h - d**2)).astype(h.dtype)

        return nu, jax.tree.map(grown, delta, nu_hat)

    return optax.chain(
        scale_by_accumulator(accumulate, b1, eps, eps**2),
        scale_by_learning_rate(learning_rate),
    )


def fedams(
    learning_rate: optax.ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.99,
    eps: Number = 1e-3,
) -> optax.GradientTransformation:
    r"""FedAMS (Wang et al., 2022, arXiv:2205.02719), its max form, which has no eps outside a root:

    .. math:: \hat v_t = \max(\hat v_{t-1}, v_t, \epsilon), \qquad
              x_{t+1} = x_t - \eta\, m_t / \sqrt{\hat v_t}

    `cc_fedams` is its other form, :math:`m_t / (\sqrt{\max(\hat v_{t-1}, v_t)} + \epsilon)`.

    Args, Raises: as for `fedadam`.

    Examples:
        >>> server = ccfl.systems.fedams(learning_rate=1.0, b1=0.5, b2=0.75)
        >>> state = server.init(jnp.zeros(2))
        >>> update, state = server.update(jnp.array([0.5, -1.5]), state)  # a pseudo-gradient
        >>> print(np.array(update).round(3))
        [-1.  1.]
    """
    eps = check_known("eps", eps, above=True)
    # v_hat_{-1} = eps is the floor that the max keeps.
    return cc_fedams(learning_rate, b1, b2, 0.0, eps)
