r"""Robust aggregation in which every coordinate, or every upload, is kept or left out.

A round counts between 0 and m uploads, of which at most f are an attacker's; m is the number of
slots. Absent and rejected ones take no part, so m stands for the number counted. Uploads weigh the
same. Where no upload is counted the pseudo-gradient is 0, and the round changes nothing. All of
these hold the round's uploads at once: memory of m models.
"""

import jax
import jax.numpy as jnp

from ccfl_jax.algorithm.aggregators import of_all
from ccfl_jax.algorithm.types import Aggregate, Params
from ccfl_jax.checks import check_known, check_whole
from ccfl_jax.systems import columns
from ccfl_jax.systems.lengths import mean_of, squared_distances


def median() -> Aggregate:
    r"""The median of every coordinate, of an even number the mean of the middle two.

    .. math:: \Delta_t[k] = \mathrm{med}\{\Delta^i[k] : i \in S_t\}

    Yin, Chen, Ramchandran, Bartlett (2018), "Byzantine-Robust Distributed Learning", algorithm 1,
    option I, arXiv:1803.01498. It has no state.

    Examples:
        For `simulation(..., aggregate=aggregate)`:

        >>> one = jnp.ones(5, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(5), 0 * one, one, one, one > 0, one.sum())
        >>> uploads = jnp.array([[1.0], [2.0], [3.0], [4.0], [90.0]])
        >>> aggregate = ccfl.systems.median()
        >>> delta, _ = aggregate.finish(uploads, arrivals, aggregate.init(uploads[0]))
        >>> print(delta)
        [3.]
    """

    def of(uploads: Params, counted: jax.Array) -> Params:
        middle = columns.of_the_middle(counted.sum(dtype=jnp.int32), len(counted))
        return jax.tree.map(lambda a: columns.of_ordered(a, counted, middle), uploads)

    return of_all(of)


def trimmed_mean(share: float | jax.Array = 0.2) -> Aggregate:
    r"""The mean of every coordinate without its :math:`\lfloor \beta m \rfloor` largest and as many
    smallest values.

    .. math:: \Delta_t[k] = \frac{1}{m - 2 \lfloor \beta m \rfloor}
              \sum_{i \in U_k} \Delta^i[k]

    Yin, Chen, Ramchandran, Bartlett (2018), algorithm 1, option II, arXiv:1803.01498. Their
    fraction is (1 - 2 beta) m where that is whole. A product within a millionth below a whole
    number counts as that number: 0.29 of 100 are 29, though the product of the floats is less. At
    least one upload is kept.

    Args:
        share: beta, in [0, 0.5); it may be traced, and is then not checked.

    Raises:
        ValueError: for another share.

    Examples:
        For `simulation(..., aggregate=aggregate)`:

        >>> one = jnp.ones(5, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(5), 0 * one, one, one, one > 0, one.sum())
        >>> uploads = jnp.array([[1.0], [2.0], [3.0], [4.0], [90.0]])
        >>> aggregate = ccfl.systems.trimmed_mean(0.2)
        >>> delta, _ = aggregate.finish(uploads, arrivals, aggregate.init(uploads[0]))
        >>> print(delta)
        [3.]
    """
    share = check_known("share", share, 0.0, 0.5, below=True)

    def of(uploads: Params, counted: jax.Array) -> Params:
        count = counted.sum(dtype=jnp.int32)
        cut = jnp.floor(jnp.asarray(share, float) * count * (1 + 1e-6)).astype(jnp.int32)
        cut = jnp.clip(cut, 0, jnp.maximum(count - 1, 0) // 2)
        place = jnp.arange(len(counted), dtype=jnp.int32)
        kept = (place >= cut) & (place < count - cut)
        weight = kept / jnp.maximum(kept.sum(), 1)
        return jax.tree.map(lambda a: columns.of_ordered(a, counted, weight), uploads)

    return of_all(of)


def krum(byzantine: int, chosen: int = 1) -> Aggregate:
    r"""The upload nearest to its m - f - 2 nearest others; Multi-Krum: the mean of `chosen` such.

    .. math:: s(i) = \sum_{i \to j} |\Delta^i - \Delta^j|^2, \qquad
              \Delta_t = \Delta^{i_*}, \quad i_* = \mathrm{arg\,min}_i\, s(i)

    where :math:`i \to j` are the m - f - 2 uploads nearest to upload i.

    Blanchard, El Mhamdi, Guerraoui, Stainer (2017), "Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent", arXiv:1703.02757. Of equal scores the lower slot's upload is taken.
    A round that counts fewer than 2 f + 3 uploads has no guarantee: it compares with
    max(m - f - 2, 1) others, and a lone upload is taken; with fewer than `chosen` it is the mean of
    all. Distances are those of whole uploads, computed from their products.

    Args:
        byzantine: f, how many uploads of a round are an attacker's at most.
        chosen: how many are averaged, the paper's m of Multi-Krum.

    Raises:
        ValueError: for a negative `byzantine`, a `chosen` below 1, and, when the round is traced,
            for fewer slots than 2 f + 3 or than `chosen`.

    Examples:
        For `simulation(..., aggregate=aggregate)`:

        >>> one = jnp.ones(5, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(5), 0 * one, one, one, one > 0, one.sum())
        >>> uploads = jnp.array([[1.0], [2.0], [3.0], [4.0], [90.0]])
        >>> aggregate = ccfl.systems.krum(byzantine=1)
        >>> delta, _ = aggregate.finish(uploads, arrivals, aggregate.init(uploads[0]))
        >>> print(delta)
        [2.]
    """
    byzantine = check_whole("byzantine", byzantine, 0)
    chosen = check_whole("chosen", chosen, 1)

    def of(uploads: Params, counted: jax.Array) -> Params:
        needed = max(2 * byzantine + 3, chosen)
        _check_slots(len(counted), needed, f"krum({byzantine}, chosen={chosen})")
        best = _ranking(_scores(squared_distances(uploads), counted, byzantine), counted)[:chosen]
        weight = counted[best].astype(float)
        return mean_of(jax.tree.map(lambda a: a[best], uploads), weight)

    return of_all(of)


def bulyan(byzantine: int) -> Aggregate:
    r"""Uploads that Krum selects one after the other, then a mean around the median.

    Krum is asked :math:`\theta = m - 2 f` times, each time among the uploads that are left. Of the
    :math:`\theta` selected every coordinate is the mean of the :math:`\beta = \theta - 2 f` values
    nearest to their median.

    El Mhamdi, Guerraoui, Rouault (2018), "The Hidden Vulnerability of Distributed Learning in
    Byzantium", arXiv:1802.07927. With k uploads left Krum compares with max(k - f - 2, 1) others;
    the paper leaves open what it does where k - f - 2 is below 1. With one other two uploads have
    the same score, and that of the lower slot is selected: the result hangs on the slots. A round
    that counts fewer than 4 f + 3 uploads has no guarantee: theta is then at least 1, and of the
    selected as many pairs are left out, up to f, as leave a value.

    Args:
        byzantine: f, how many uploads of a round are an attacker's at most.

    Raises:
        ValueError: for a negative `byzantine`, and, when the round is traced, for fewer slots than
            4 f + 3.

    Examples:
        For `simulation(..., aggregate=aggregate)`:

        >>> one = jnp.ones(7, jnp.int32)
        >>> arrivals = ccfl.Arrivals(jnp.arange(7), 0 * one, one, one, one > 0, one.sum())
        >>> uploads = jnp.array([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [90.0]])
        >>> aggregate = ccfl.systems.bulyan(byzantine=1)
        >>> delta, _ = aggregate.finish(uploads, arrivals, aggregate.init(uploads[0]))
        >>> print(delta)
        [3.]
    """
    byzantine = check_whole("byzantine", byzantine, 0)

    def of(uploads: Params, counted: jax.Array) -> Params:
        _check_slots(len(counted), 4 * byzantine + 3, f"bulyan({byzantine})")
        theta = jnp.maximum(counted.sum(dtype=jnp.int32) - 2 * byzantine, 1)
        kept = _selected(squared_distances(uploads), counted, byzantine, theta)
        middle = columns.of_the_middle(kept.sum(dtype=jnp.int32), len(kept))
        beta = theta - 2 * jnp.minimum(byzantine, (theta - 1) // 2)

        def around_the_median(rows: jax.Array) -> jax.Array:
            center = columns.of_ordered(rows, kept, middle)
            return columns.of_nearest(rows, kept, center, beta)

        return jax.tree.map(around_the_median, uploads)

    return of_all(of)


def _scores(far: jax.Array, counted: jax.Array, byzantine: int) -> jax.Array:
    """Krum's score `[slots]` of each upload counted, from squared distances `[slots, slots]`."""
    count = counted.sum(dtype=jnp.int32)
    others = counted[:, None] & counted[None] & ~jnp.eye(len(counted), dtype=bool)
    ordered = jnp.sort(jnp.where(others, far, jnp.inf), axis=1)
    near = jnp.minimum(jnp.maximum(count - byzantine - 2, 1), count - 1)
    is_near = jnp.arange(len(counted), dtype=jnp.int32)[None] < near
    return jnp.where(is_near, ordered, 0).sum(axis=1)


def _ranking(score: jax.Array, counted: jax.Array) -> jax.Array:
    """The slots from the lowest score; those not counted last, whatever it is, inf too."""
    return jnp.lexsort((score, ~counted))


def _selected(far: jax.Array, counted: jax.Array, byzantine: int, number: jax.Array) -> jax.Array:
    """bool `[slots]`: the `number` uploads that Krum selects one after the other."""

    def select(turn: jax.Array, left: jax.Array) -> jax.Array:
        del turn
        best = _ranking(_scores(far, left, byzantine), left)[0]
        return left.at[best].set(False)

    return counted & ~jax.lax.fori_loop(0, number, select, counted)


def _check_slots(slots: int, needed: int, name: str) -> None:
    if slots < needed:
        raise ValueError(f"slots: expected at least {needed} for {name}, found {slots}")
