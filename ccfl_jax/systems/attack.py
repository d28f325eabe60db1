r"""Byzantine clients: what they learn from, and what they send.

Everywhere `attackers` are bools, one for each client, True for those who attack; clients beyond its
end are honest. `chosen` draws them. A round is the same program whoever attacks, so `attackers` may
differ between the trials of a sweep.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.aggregators import of_all
from ccfl_jax.algorithm.types import Aggregate, Array, Arrivals, Params, Visit
from ccfl_jax.checks import (
    check_kind,
    check_known,
    check_labels,
    check_number,
    check_seed,
    check_whole,
    unmasked,
)
from ccfl_jax.data import FederatedData
from ccfl_jax.systems.lengths import mean_of

_STREAM = 0xA77AC  # an attack's draws, apart from those of other parts of a rule


def chosen(num_clients: int, share: float, seed: int) -> np.ndarray:
    """bool `[num_clients]`: round(share * num_clients) attackers, drawn without replacement.

    Args:
        num_clients: n, at least 1.
        share: of all clients, from 0 to 1; a half is rounded to the even number.
        seed: of NumPy's generator.

    Raises:
        ValueError: for arguments out of their range.

    Examples:
        >>> attackers = ccfl.systems.chosen(num_clients=30, share=0.2, seed=0)
        >>> attackers.shape, int(attackers.sum())
        ((30,), 6)
        >>> rule = ccfl.terms.sending(ccfl.systems.sign_flip(attackers, 10.0))
    """
    num_clients = check_whole("num_clients", num_clients, 1)
    check_number("share", share, 0.0, 1.0)
    check_seed(seed)
    attackers = np.zeros(num_clients, bool)
    number = round(float(share) * num_clients)
    attackers[np.random.default_rng(seed).choice(num_clients, number, replace=False)] = True
    return attackers


def sign_flip(
    attackers: Array, scale: float | jax.Array = 1.0
) -> optax.GradientTransformationExtraArgs:
    r"""Attackers send :math:`-\text{scale} \cdot \Delta^i`; for `terms.sending`.

    Li, Xu, Chen, Giannakis, Ling (2019), "RSA: Byzantine-Robust Stochastic Aggregation Methods",
    arXiv:1811.03761.

    Args:
        attackers: bool `[clients]`.
        scale: at least 0; it may be traced, and is then not checked.

    Raises:
        ValueError: for `attackers` that are no bools `[clients]`, or a negative scale.

    Examples:
        >>> attackers = ccfl.systems.chosen(num_clients=30, share=1.0, seed=0)  # everybody, here
        >>> rule = ccfl.terms.sending(ccfl.systems.sign_flip(attackers, 10.0))
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(
        ...     *map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), rule.memory(x), jax.random.key(0)
        ... )
        >>> end = ccfl.End(upload=jnp.array([3.0, -4.0]), info=(), params=x, optimiser=())
        >>> print(rule.finish(visit, end)[0])
        [-30.  40.]
    """
    scale = check_known("scale", scale)

    def flipped(upload: Params, key: jax.Array) -> Params:
        del key
        return jax.tree.map(lambda a: a * -jnp.asarray(scale, a.dtype), upload)

    return _replacing(attackers, flipped)


def gaussian(attackers: Array, std: float | jax.Array) -> optax.GradientTransformationExtraArgs:
    r"""Attackers send :math:`N(0, \text{std}^2)` in every coordinate instead of their upload; for
    `terms.sending`.

    Blanchard, El Mhamdi, Guerraoui, Stainer (2017), arXiv:1703.02757, with a standard
    deviation of 200. It is drawn anew in each visit.

    Args:
        attackers: bool `[clients]`.
        std: at least 0; it may be traced, and is then not checked.

    Raises:
        ValueError: for `attackers` that are no bools `[clients]`, or a negative std.

    Examples:
        >>> attackers = ccfl.systems.chosen(num_clients=30, share=1.0, seed=0)  # everybody, here
        >>> rule = ccfl.terms.sending(ccfl.systems.gaussian(attackers, std=200.0))
        >>> x = jnp.zeros(10_000)
        >>> visit = ccfl.Visit(
        ...     *map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), rule.memory(x), jax.random.key(0)
        ... )
        >>> sent, _ = rule.finish(visit, ccfl.End(upload=x, info=(), params=x, optimiser=()))
        >>> round(float(sent.std()), -2)
        200.0
    """
    std = check_known("std", std)

    def noise(upload: Params, key: jax.Array) -> Params:
        leaves, structure = jax.tree.flatten(upload)
        keys = jax.random.split(jax.random.fold_in(key, _STREAM), max(len(leaves), 1))
        drawn = [
            jnp.asarray(std, a.dtype) * jax.random.normal(own, a.shape, a.dtype)
            for own, a in zip(keys, leaves, strict=False)
        ]
        return jax.tree.unflatten(structure, drawn)

    return _replacing(attackers, noise)


def label_flip(data: FederatedData, attackers: Array, num_classes: int) -> FederatedData:
    """The data in which the attackers' rows have the label C - 1 - y instead of y.

    Fang, Cao, Jia, Gong (2020), "Local Model Poisoning Attacks to Byzantine-Robust Federated
    Learning", arXiv:1911.11815. The attackers then follow the protocol.

    Args:
        data: with labels "y", integers `[N]` from 0 to C - 1; it is not changed.
        attackers: bool `[clients]`, one for each client of `data`.
        num_classes: C, at least 1.

    Raises:
        ValueError: for another number of `attackers` than clients, data without such labels, or a
            row that an attacker shares with an honest client.

    Examples:
        >>> arrays = {"x": np.zeros((4, 1)), "y": np.array([0, 1, 2, 3])}
        >>> data = ccfl.FederatedData.from_indices(arrays, [[0, 1], [2, 3]])
        >>> poisoned = ccfl.systems.label_flip(data, np.array([False, True]), num_classes=10)
        >>> print(poisoned.arrays["y"])
        [0 1 7 6]
    """
    check_kind("data", data, FederatedData, "a ccfl.FederatedData")
    flags = np.asarray(_checked(attackers))
    if len(flags) != len(data):
        raise ValueError(f"attackers: expected {len(data)}, one a client, found {len(flags)}")
    if "y" not in data.arrays:
        raise ValueError(f"arrays: expected labels 'y', found {', '.join(data.arrays)}")
    owner = np.repeat(flags, np.diff(np.asarray(data.offsets)))
    rows, honest = (np.asarray(data.indices)[own] for own in (owner, ~owner))
    shared = np.intersect1d(rows, honest)
    if shared.size:
        raise ValueError(
            f"attackers: expected rows of their own, found {shared.size} that honest clients have "
            f"too (row {shared[0]})"
        )
    before = data.arrays["y"]
    y = np.array(before)
    check_labels(y[rows], num_classes, "the attackers")
    y[rows] = num_classes - 1 - y[rows].astype(np.int64)
    flipped = jnp.asarray(y) if isinstance(before, jax.Array) else y
    return dataclasses.replace(data, arrays={**data.arrays, "y": flipped})


def alie(attackers: Array, aggregate: Aggregate, z: float | jax.Array) -> Aggregate:
    r"""Attackers send what is just not noticed: :math:`\mu + z \sigma` in every coordinate.

    .. math:: \mu[k] = \frac{1}{h} \sum_{i \text{ honest}} \Delta^i[k], \qquad
              \sigma[k]^2 = \frac{1}{h} \sum_{i \text{ honest}} (\Delta^i[k] - \mu[k])^2

    Baruch, Baruch, Goldberg (2019), "A Little Is Enough: Circumventing Defenses for Distributed
    Learning", arXiv:1902.06156. There the mean and deviation are those of what the
    attackers would have sent; here those of the h honest uploads of the round, which is at least as
    strong. For n workers, f of them attackers, the paper's z is
    :math:`\Phi^{-1}((n - f - s) / (n - f))` with :math:`s = \lfloor n / 2 + 1 \rfloor - f`.

    The attack stands before the aggregator, as it sees all uploads: the round holds all of them,
    whatever `aggregate` needs. Only attackers whose own upload counts take part; without an honest
    one in the round, or where the numbers do not reach, they send their own.

    Args:
        attackers: bool `[clients]`.
        aggregate: what the server does with the uploads.
        z: any number; below 0 for :math:`\mu - |z| \sigma`. It may be traced.

    Raises:
        ValueError: for `attackers` that are no bools `[clients]`, an `aggregate` that is none, a z
            that is not finite; when the round is traced, for weighted uploads.

    Examples:
        For `simulation(..., aggregate=aggregate)`:

        >>> attackers = np.array([False, False, False, False, True])
        >>> one = jnp.ones(5, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(5), 0 * one, one, one, one > 0, one.sum())
        >>> uploads = jnp.array([[1.0], [3.0], [5.0], [7.0], [4.0]])
        >>> aggregate = ccfl.systems.alie(attackers, ccfl.systems.median(), z=1.0)
        >>> delta, _ = aggregate.finish(uploads, arrivals, aggregate.init(uploads[0]))
        >>> print(delta)  # 4 without the attacker
        [5.]
    """
    z = check_known("z", z, -float("inf"))

    def shifted(uploads: Params, honest: jax.Array) -> Params:
        mean = mean_of(uploads, honest.astype(float))
        squares = jax.tree.map(lambda a, b: (a - b[None]) ** 2, uploads, mean)
        variance = mean_of(squares, honest.astype(float))
        return jax.tree.map(lambda a, b: a + jnp.asarray(z, a.dtype) * jnp.sqrt(b), mean, variance)

    return _knowing_all(attackers, aggregate, shifted)


def ipm(attackers: Array, aggregate: Aggregate, epsilon: float | jax.Array) -> Aggregate:
    r"""Attackers send the honest mean backwards: :math:`-\epsilon \mu` (inner product
    manipulation).

    Xie, Koyejo, Gupta (2019), "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
    Manipulation", arXiv:1903.03936; :math:`\mu` is the mean of the round's honest uploads. What is
    said of `alie` on the place of the attack and on who takes part holds here, too.

    Args:
        attackers: bool `[clients]`.
        aggregate: what the server does with the uploads.
        epsilon: at least 0; it may be traced, and is then not checked.

    Raises:
        ValueError: as `alie`, and for a negative epsilon.

    Examples:
        For `simulation(..., aggregate=aggregate)`:

        >>> attackers = np.array([False, False, False, False, True])
        >>> one = jnp.ones(5, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(5), 0 * one, one, one, one > 0, one.sum())
        >>> uploads = jnp.array([[1.0], [3.0], [5.0], [7.0], [4.0]])
        >>> aggregate = ccfl.systems.ipm(attackers, ccfl.mean(), epsilon=4.0)
        >>> delta, _ = aggregate.finish(uploads, arrivals, aggregate.init(uploads[0]))
        >>> print(delta)  # four uploads of mean 4, and one of -16
        [0.]
    """
    epsilon = check_known("epsilon", epsilon)

    def backwards(uploads: Params, honest: jax.Array) -> Params:
        mean = mean_of(uploads, honest.astype(float))
        return jax.tree.map(lambda a: -jnp.asarray(epsilon, a.dtype) * a, mean)

    return _knowing_all(attackers, aggregate, backwards)


def _replacing(
    attackers: Array, instead: Callable[[Params, jax.Array], Params]
) -> optax.GradientTransformationExtraArgs:
    """Attackers' uploads become `instead(upload, key)`."""
    flags = _checked(attackers)

    def update(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, Any]:
        del params
        visit: Visit = extra["visit"]
        attacks = _attack(flags, visit.client)
        return tree_util.select(attacks, instead(updates, visit.key), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _knowing_all(
    attackers: Array,
    aggregate: Aggregate,
    instead: Callable[[Params, jax.Array], Params],
) -> Aggregate:
    """`aggregate` of uploads of which the attackers' are `instead(uploads, honest)`."""
    flags = _checked(attackers)
    check_kind("aggregate", aggregate, Aggregate, "a ccfl.Aggregate")

    def finish(uploads: Any, arrivals: Arrivals, memory: Any) -> tuple[Params, Any]:
        attacks = _attack(flags, arrivals.client)

        def replaced(uploads: Params, counted: jax.Array) -> Params:
            honest = counted & ~attacks
            sent = instead(uploads, honest)
            lies = counted & attacks & honest.any() & tree_util.all_finite(sent)
            return jax.tree.map(
                lambda a, b: jnp.where(tree_util.over(lies, a), b[None], a), uploads, sent
            )

        uploads, _ = of_all(replaced).finish(uploads, arrivals, ())
        if not aggregate.stacked:
            uploads = tree_util.masked_sum(tree_util.wide(uploads), arrivals.counted)
        return aggregate.finish(uploads, arrivals, memory)

    return Aggregate(aggregate.init, finish, stacked=True)


def _attack(flags: Array, client: jax.Array) -> jax.Array:
    return jnp.asarray(flags).at[client].get(mode="fill", fill_value=False)


def _checked(attackers: Any) -> Array:
    """`attackers` as an array; a copy of NumPy's, so that later writes change nothing."""
    flags = attackers
    if not isinstance(attackers, jax.Array):
        flags = unmasked("attackers", attackers).copy()
    if flags.dtype != bool or flags.ndim != 1 or not flags.size:
        raise ValueError(f"attackers: expected bools [clients], found {flags.dtype} {flags.shape}")
    return flags
