r"""Accounting: the epsilon of Gaussian noise on sums of clipped uploads, by Google's dp-accounting.

A mechanism is :math:`(\epsilon, \delta)`-private where for neighbouring runs and any set of results
:math:`P(M \in S) \le e^\epsilon P(M' \in S) + \delta`. What is accounted for is the noised sum of
each round, and so all models. Out of it, and unprotected in a simulation: training losses and
metrics, the counts of uploads, and a server method that uses `value`. A rejected upload counts as
one of zeros, which holds but where it was the only one of its round, as such a round is no step.
"""

import math
from types import ModuleType

import numpy as np

from ccfl_jax.checks import check_kind, check_number, check_whole, one_line
from ccfl_jax.schedules.schedule import Schedule


def epsilon_of_sampling(rate: float, rounds: int, noise_multiplier: float, delta: float) -> float:
    """Epsilon where every client joins each round by itself with chance `rate`, once (McMahan et
    al., 2018): amplified by sampling, of neighbours that differ by one client's presence.

    The accountant is that of privacy loss distributions (Koskela et al., 2020), an upper bound to
    its discretisation, below the paper's moments accountant. A stale client's start model makes no
    difference, as long as who joins a round is drawn for that round; the random schedules of this
    library are not drawn so, nor is a clock's (`epsilon_of_schedule`). A round that nobody joins is
    no step and shows that nobody joined, which is left out.

    Args:
        rate: q, in (0, 1].
        rounds: T, at least 1.
        noise_multiplier: z, the noise's standard deviation over the clip, of a round's sum.
        delta: in (0, 1).

    Returns:
        epsilon; infinity without noise.

    Raises:
        ValueError: for an argument outside its range.
        ImportError: without dp-accounting (`pip install 'ccfl_jax[privacy]'`).

    Examples:
        >>> epsilon = ccfl.systems.epsilon_of_sampling(
        ...     rate=0.05, rounds=100, noise_multiplier=1.0, delta=1e-5
        ... )
        >>> round(epsilon, 1)
        3.5
    """
    check_number("rate", rate, most=1, above=True)
    rounds = check_whole("rounds", rounds, 1)
    _check(noise_multiplier, delta)
    if rate == 1 or noise_multiplier == 0:
        return _of_gaussian(rounds, noise_multiplier, delta)
    dp = _dp_accounting()
    accountant = dp.pld.PLDAccountant()
    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise_multiplier))
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def epsilon_of_schedule(
    schedule: Schedule, noise_multiplier: float, delta: float, tree: bool = False
) -> float:
    r"""Epsilon of the client that any schedule exposes most; no amplification is claimed.

    Who takes part when is taken as known, and neighbours differ in what one client sends: its
    uploads, or zeros. With k_{t,i} of them in round t, which change a sum by k clips,

    .. math:: \max_i \sqrt{\textstyle\sum_t k_{t,i}^2} \; C

    is how far all sums together can move, and epsilon is that of one Gaussian mechanism (Dong et
    al., 2022), from the exact curve of Balle and Wang (2018).

    Args:
        schedule: of the whole run. Rounds without work are no server step.
        noise_multiplier: z, the noise's standard deviation over the clip, of a round's sum; with
            `tree` of a node's.
        delta: in (0, 1).
        tree: whether the noise is `tree_noise`'s: instead of rounds the sums are those of the
            tree's nodes that some prefix of the rounds is made of (Kairouz et al., 2021).

    Returns:
        epsilon; infinity without noise, 0 where nobody takes part.

    Raises:
        ValueError: for an argument outside its range.
        ImportError: without dp-accounting (`pip install 'ccfl_jax[privacy]'`).

    Examples:
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> round(ccfl.systems.epsilon_of_schedule(schedule, noise_multiplier=10.0, delta=1e-5), 1)
        2.0
    """
    check_kind("schedule", schedule, Schedule, "a ccfl.Schedule")
    _check(noise_multiplier, delta)
    own = schedule.checked()
    working = own.working()
    step = np.cumsum(working.any(axis=1)) - 1  # of the server, from 0
    steps, at = int(step[-1]) + 1 if step.size else 0, np.nonzero(working)
    if not steps:
        return 0.0
    blocks, client = step[at[0]], own.client[at].astype(np.int64)
    total = np.zeros(client.max() + 1)
    for level in range(steps.bit_length() if tree else 1):
        node = blocks >> level
        # Finished nodes, without the odd ones: where a prefix has such a one it has the parent.
        kept = ((node + 1) << level <= steps) & ((node % 2 == 0) | (not tree))
        pairs, count = np.unique(np.stack([client, node])[:, kept], axis=1, return_counts=True)
        np.add.at(total, pairs[0], count.astype(np.float64) ** 2)
    return _of_gaussian(total.max(), noise_multiplier, delta)


def _of_gaussian(square: float, noise_multiplier: float, delta: float) -> float:
    """Of sums that move by sqrt(square) clips."""
    sigma = noise_multiplier / math.sqrt(square)
    return float(_dp_accounting().get_epsilon_gaussian(sigma, delta))


def _check(noise_multiplier: float, delta: float) -> None:
    check_number("noise_multiplier", noise_multiplier)
    check_number("delta", delta, most=1, above=True, below=True)


def _dp_accounting() -> ModuleType:
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(
            "dp_accounting: expected its package (pip install 'ccfl_jax[privacy]'), found "
            f"{one_line(str(error))}"
        ) from error
    return dp_accounting
