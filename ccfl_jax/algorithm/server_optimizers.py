r"""Server optimisers, as optax gradient transformations over the pseudo-gradient.

The input is :math:`\Delta_t`, start model minus end model, which points along the gradient: after
the learning rate's minus sign `optax.apply_updates` descends. All three adaptive rules share

.. math:: m_t = (1-\beta)\Delta_t + \beta m_{t-1}, \qquad
          x_{t+1} = x_t - \eta \frac{m_t}{\sqrt{\hat v_t} + \epsilon}

(Algorithm 2) with :math:`m_{-1} = 0` and differ in :math:`\hat v_t`. There is **no bias
correction**, :math:`\epsilon` stands **outside** the root, and momentum is on for Adagrad too.
Moments are kept in float32 (float64 for float64 parameters) whatever the parameters are. Every
hyperparameter may be a traced scalar. optax.adam and optax.amsgrad correct the bias by default;
optax.adagrad has no momentum, starts its accumulator at 0.1 and puts eps inside the root: same
names, other algorithms.

`optax.inject_hyperparams` casts hyperparameters to the parameters' dtype: for bfloat16 models give
it `hyperparam_dtype=jnp.float32`, or b2 = 0.999 becomes 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.types import Params
from ccfl_jax.checks import check_known

Scalar = float | jax.Array
_LEAST = 1.2e-38  # XLA flushes smaller float32 numbers to 0


class ScaleByCCState(NamedTuple):
    """State of the adaptive server rules.

    Attributes:
        count: int32 scalar, server updates so far; no rule uses it, runs are checked by it.
        mu: the momentum m_t, like the parameters.
        nu: v_t of CC-FedAMS, like the parameters; `()` for the other rules.
        nu_hat: the accumulator under the root, like the parameters.
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride], as in optax
    mu: Params
    nu: Params
    nu_hat: Params


def scale_by_cc_adagrad(
    b1: Scalar = 0.9, eps: Scalar = 1e-3, initial_accumulator: Scalar = 0.0
) -> optax.GradientTransformation:
    r"""The direction of CC-FedAdagrad: :math:`\hat v_t = \hat v_{t-1} + \Delta_t^2` (Algorithm 2).

    Args:
        b1: the paper's beta, momentum, in [0, 1).
        eps: outside the root, at least 0.
        initial_accumulator: every coordinate of v_hat_{-1}, at least 0. The paper states none; its
            proof needs eps**2, its experiments fit 0.

    Raises:
        ValueError: for a concrete hyperparameter outside its range.

    Examples:
        >>> direction = ccfl.scale_by_cc_adagrad(b1=0.0, eps=0.5)
        >>> state = direction.init(jnp.zeros(2))
        >>> update, state = direction.update(jnp.array([0.5, -1.5]), state)
        >>> print(update, state.nu_hat)  # delta / (sqrt(delta**2) + eps)
        [ 0.5  -0.75] [0.25 2.25]
    """

    def accumulate(delta: Params, nu: Params, nu_hat: Params) -> tuple[Params, Params]:
        return nu, jax.tree.map(lambda d, h: h + d**2, delta, nu_hat)

    return scale_by_accumulator(accumulate, b1, eps, initial_accumulator)


def scale_by_cc_adam(
    b1: Scalar = 0.9, b2: Scalar = 0.99, eps: Scalar = 1e-3, initial_accumulator: Scalar = 0.0
) -> optax.GradientTransformation:
    r"""The direction of CC-FedAdam: :math:`\hat v_t = (1-\gamma)\Delta_t^2 + \gamma\hat v_{t-1}`
    (Algorithm 2).

    Args:
        b1: the paper's beta, momentum, in [0, 1).
        b2: the paper's gamma, in [0, 1).
        eps: outside the root, at least 0.
        initial_accumulator: every coordinate of v_hat_{-1}, at least 0 (see `scale_by_cc_adagrad`).

    Raises:
        ValueError: for a concrete hyperparameter outside its range.

    Examples:
        >>> direction = ccfl.scale_by_cc_adam(b1=0.0, b2=0.75, eps=0.25)
        >>> state = direction.init(jnp.zeros(2))
        >>> update, state = direction.update(jnp.array([0.5, -1.5]), state)
        >>> print(update, state.nu_hat)  # a quarter of delta**2
        [ 1.  -1.5] [0.0625 0.5625]
    """
    b2 = check_known("b2", b2, most=1, below=True)

    def accumulate(delta: Params, nu: Params, nu_hat: Params) -> tuple[Params, Params]:
        return nu, jax.tree.map(lambda d, h: _ema(d**2, h, b2), delta, nu_hat)

    return scale_by_accumulator(accumulate, b1, eps, initial_accumulator)


def scale_by_cc_ams(
    b1: Scalar = 0.9, b2: Scalar = 0.99, eps: Scalar = 1e-3, initial_accumulator: Scalar = 0.0
) -> optax.GradientTransformation:
    r"""The direction of CC-FedAMS: :math:`v_t = (1-\gamma)\Delta_t^2 + \gamma v_{t-1}`,
    :math:`\hat v_t = \max(\hat v_{t-1}, v_t)` (Algorithm 2).

    Args:
        b1: the paper's beta, momentum, in [0, 1).
        b2: the paper's gamma, in [0, 1).
        eps: outside the root, at least 0.
        initial_accumulator: every coordinate of v_hat_{-1}, at least 0 (see `scale_by_cc_adagrad`);
            v_{-1} is 0, so a positive value is a floor under the root.

    Raises:
        ValueError: for a concrete hyperparameter outside its range.

    Examples:
        >>> direction = ccfl.scale_by_cc_ams(b1=0.0, b2=0.75, eps=0.25)
        >>> state = direction.init(jnp.zeros(2))
        >>> for delta in (jnp.array([0.5, -1.5]), jnp.zeros(2)):
        ...     update, state = direction.update(delta, state)

        >>> print(state.nu, state.nu_hat)  # the average falls, its largest value stays
        [0.046875 0.421875] [0.0625 0.5625]
    """
    b2 = check_known("b2", b2, most=1, below=True)

    def accumulate(delta: Params, nu: Params, nu_hat: Params) -> tuple[Params, Params]:
        nu = jax.tree.map(lambda d, n: _ema(d**2, n, b2), delta, nu)
        return nu, jax.tree.map(jnp.maximum, nu_hat, nu)

    return scale_by_accumulator(accumulate, b1, eps, initial_accumulator, keep_nu=True)


def cc_fedavg() -> optax.GradientTransformation:
    """CC-FedAvg: x_{t+1} = x_t - Delta_t, the server learning rate is 1 (section 5.2 of the paper).

    With the default normalisation of uploads by local steps this is one mean local step a round.

    Examples:
        >>> server = ccfl.cc_fedavg()
        >>> delta = jnp.array([0.1, -0.4])  # a pseudo-gradient
        >>> update, _ = server.update(delta, server.init(jnp.zeros(2)))
        >>> print(update)
        [-0.1  0.4]
    """
    return cc_fedsgd(1.0)


def cc_fedsgd(learning_rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    """CC-FedSGD: x_{t+1} = x_t - eta Delta_t (section 5.2 of the paper).

    Examples:
        >>> server = ccfl.cc_fedsgd(
        ...     optax.exponential_decay(10.0, transition_steps=100, decay_rate=0.5)
        ... )
        >>> delta = jnp.array([0.1, -0.4])  # a pseudo-gradient
        >>> update, _ = server.update(delta, server.init(jnp.zeros(2)))
        >>> print(update)
        [-1.  4.]
    """
    return scale_by_learning_rate(learning_rate)


def cc_fedavgm(
    learning_rate: optax.ScalarOrSchedule, b1: Scalar = 0.9
) -> optax.GradientTransformation:
    """CC-FedAvgM: x_{t+1} = x_t - eta m_t with the damped momentum m_t of Algorithm 1.

    Heavy-ball momentum, m_t = Delta_t + beta m_{t-1}, is the same with eta (1 - beta) for eta.

    Examples:
        >>> server = ccfl.cc_fedavgm(learning_rate=1.0, b1=0.5)
        >>> state = server.init(jnp.zeros(2))
        >>> for _ in range(2):  # the same pseudo-gradient twice
        ...     update, state = server.update(jnp.array([1.0, -4.0]), state)

        >>> print(update)  # -(0.5 + 0.5 * 0.5) of it
        [-0.75  3.  ]
    """
    b1 = check_known("b1", b1, most=1, below=True)

    def init(params: Params) -> optax.TraceState:
        return optax.TraceState(trace=_full_like(params, 0.0))

    def update(
        updates: Params, state: Any, params: Params | None = None
    ) -> tuple[Params, optax.TraceState]:
        del params
        mu = jax.tree.map(lambda d, m: _ema(d.astype(m.dtype), m, b1), updates, state.trace)
        return mu, optax.TraceState(trace=mu)

    momentum = optax.GradientTransformation(init, update)
    return optax.chain(momentum, scale_by_learning_rate(learning_rate))


def cc_fedadagrad(
    learning_rate: optax.ScalarOrSchedule,
    b1: Scalar = 0.9,
    eps: Scalar = 1e-3,
    initial_accumulator: Scalar = 0.0,
) -> optax.GradientTransformation:
    """CC-FedAdagrad: `scale_by_cc_adagrad`, then minus the learning rate (Algorithm 2).

    Examples:
        >>> adaptive = ccfl.cc_fedadagrad(learning_rate=1.0, b1=0.5, eps=0.5)
        >>> server = optax.chain(optax.clip_by_global_norm(4.0), adaptive)
        >>> state = server.init(jnp.zeros(2))
        >>> update, state = server.update(jnp.array([0.5, -1.5]), state)  # a pseudo-gradient
        >>> print(update)
        [-0.25   0.375]
    """
    return optax.chain(
        scale_by_cc_adagrad(b1, eps, initial_accumulator), scale_by_learning_rate(learning_rate)
    )


def cc_fedadam(
    learning_rate: optax.ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-3,
    initial_accumulator: Scalar = 0.0,
) -> optax.GradientTransformation:
    """CC-FedAdam: `scale_by_cc_adam`, then minus the learning rate (Algorithm 2).

    Examples:
        >>> adaptive = ccfl.cc_fedadam(learning_rate=1.0, b1=0.5, b2=0.75, eps=0.25)
        >>> server = optax.chain(optax.clip_by_global_norm(4.0), adaptive)
        >>> state = server.init(jnp.zeros(2))
        >>> update, state = server.update(jnp.array([0.5, -1.5]), state)  # a pseudo-gradient
        >>> print(update)
        [-0.5   0.75]
    """
    return optax.chain(
        scale_by_cc_adam(b1, b2, eps, initial_accumulator), scale_by_learning_rate(learning_rate)
    )


def cc_fedams(
    learning_rate: optax.ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-3,
    initial_accumulator: Scalar = 0.0,
) -> optax.GradientTransformation:
    """CC-FedAMS: `scale_by_cc_ams`, then minus the learning rate (Algorithm 2).

    Examples:
        >>> adaptive = ccfl.cc_fedams(learning_rate=1.0, b1=0.5, b2=0.75, eps=0.25)
        >>> server = optax.chain(optax.clip_by_global_norm(4.0), adaptive)
        >>> state = server.init(jnp.zeros(2))
        >>> update, state = server.update(jnp.array([0.5, -1.5]), state)  # a pseudo-gradient
        >>> print(update)
        [-0.5   0.75]
    """
    return optax.chain(
        scale_by_cc_ams(b1, b2, eps, initial_accumulator), scale_by_learning_rate(learning_rate)
    )


def adaptive_share(state: optax.OptState, eps: Scalar) -> jax.Array:
    r"""Share of the coordinates with :math:`\sqrt{\hat v_t} > \epsilon`: where the rule adapts.

    Where it is near 0 the method is momentum with rate eta / eps, whatever its name.

    Args:
        state: an optax state that holds a `ScaleByCCState`, as those of `cc_fedadagrad`,
            `cc_fedadam`, `cc_fedams` and of chains of them.
        eps: of that method.

    Returns:
        float32 scalar; nan where the state holds none.
    """
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, ScaleByCCState))
    roots = [node.nu_hat for node in nodes if isinstance(node, ScaleByCCState)]
    above = [(jnp.sqrt(h) > eps).mean(dtype=jnp.float32) * h.size for h in jax.tree.leaves(roots)]
    size = sum(h.size for h in jax.tree.leaves(roots))
    return jnp.asarray(sum(above) / size if size else jnp.nan, jnp.float32)


def scale_by_accumulator(
    accumulate: Callable[[Params, Params, Params], tuple[Params, Params]],
    b1: Scalar,
    eps: Scalar,
    initial_accumulator: Scalar,
    keep_nu: bool = False,
) -> optax.GradientTransformation:
    """What the rules share; `accumulate(delta, nu, nu_hat) -> (nu, nu_hat)` tells them apart."""
    b1 = check_known("b1", b1, most=1, below=True)
    eps = check_known("eps", eps)
    initial_accumulator = check_known("initial_accumulator", initial_accumulator)
    known = not _traced(eps) and not _traced(initial_accumulator)
    if known and max(eps, initial_accumulator) < _LEAST:
        raise ValueError(
            f"eps: expected one of them at least {_LEAST} (a coordinate without pseudo-gradient "
            f"would be 0/0), found {eps:g} with initial_accumulator {initial_accumulator:g}"
        )

    def init(params: Params) -> ScaleByCCState:
        return ScaleByCCState(
            count=jnp.zeros((), jnp.int32),
            mu=_full_like(params, 0.0),
            nu=_full_like(params, 0.0) if keep_nu else (),
            nu_hat=_full_like(params, initial_accumulator),
        )

    def update(
        updates: Params, state: Any, params: Params | None = None
    ) -> tuple[Params, ScaleByCCState]:
        del params
        delta = jax.tree.map(lambda d, m: d.astype(m.dtype), updates, state.mu)
        mu = jax.tree.map(lambda d, m: _ema(d, m, b1), delta, state.mu)
        nu, nu_hat = accumulate(delta, state.nu, state.nu_hat)
        direction = jax.tree.map(lambda m, h: (m / (jnp.sqrt(h) + eps)).astype(m.dtype), mu, nu_hat)
        return direction, ScaleByCCState(state.count + 1, mu, nu, nu_hat)

    return optax.GradientTransformation(init, update)


def _ema(new: jax.Array, old: jax.Array, decay: Scalar) -> jax.Array:
    return ((1 - decay) * new + decay * old).astype(old.dtype)


def _full_like(params: Params, value: Scalar) -> Params:
    return jax.tree.map(
        lambda p: jnp.full(p.shape, value, tree_util.at_least_float32(p.dtype)), params
    )


def scale_by_learning_rate(
    learning_rate: optax.ScalarOrSchedule,
) -> optax.GradientTransformation:
    """optax's, of a schedule or a rate that is not negative."""
    if not callable(learning_rate):
        learning_rate = check_known("learning_rate", learning_rate)
    return optax.scale_by_learning_rate(learning_rate)


def _traced(value: Scalar) -> bool:
    return isinstance(value, Tracer)
