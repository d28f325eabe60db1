"""Pieces that rules are made of: terms of the local loss, and what is done to an upload."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm.types import End, Params, Rule, Visit, Weighted
from ccfl_jax.checks import check_kind, check_known

Weight = Callable[[Visit, End], Any]


def proximal(
    mu: float | jax.Array, anchor: Params | None = None
) -> optax.GradientTransformationExtraArgs:
    r"""The term :math:`\frac\mu2 |x - a|^2` of the local loss: mu (x - a) is added to the gradient.

    Args:
        mu: at least 0.
        anchor: a; by default the model that the work starts from, which is what a local optimiser,
            fresh in every visit, sees first.

    Raises:
        ValueError: for a negative mu.

    Examples:
        >>> local = optax.chain(ccfl.terms.proximal(0.5), optax.sgd(1.0))  # FedProx
        >>> state = local.init(jnp.array([1.0, 1.0]))  # the model that the work starts from
        >>> update, _ = local.update(jnp.zeros(2), state, jnp.array([3.0, 2.0]))
        >>> print(update)  # back towards it, by 0.5 * 2 and 0.5 * 1
        [-1.  -0.5]
    """
    mu = check_known("mu", mu)

    def init(params: Params) -> Params:
        return params if anchor is None else ()

    def update(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, Any]:
        del extra
        to = state if anchor is None else anchor
        pulled = jax.tree.map(
            lambda g, p, a: (g + mu * (p - a)).astype(g.dtype), updates, params, to
        )
        return pulled, state

    return optax.GradientTransformationExtraArgs(init, update)


def linear(slope: Params) -> optax.GradientTransformation:
    r"""The term :math:`\langle s, x \rangle` of the local loss: every gradient is shifted by s.

    Args:
        slope: s, like the parameters.

    Examples:
        >>> local = optax.chain(ccfl.terms.linear(jnp.array([1.0, -1.0])), optax.sgd(0.5))
        >>> update, _ = local.update(jnp.zeros(2), local.init(jnp.zeros(2)))
        >>> print(update)
        [-0.5  0.5]
    """

    def shift(updates: Params, params: Params | None) -> Params:
        del params
        return jax.tree.map(lambda g, s: (g + s).astype(g.dtype), updates, slope)

    return optax.stateless(shift)


def before(
    *terms: optax.GradientTransformation, optimiser: Any
) -> optax.GradientTransformationExtraArgs:
    """The local optimiser, or the plain SGD of a rate, with terms of the loss before it.

    Examples:
        In the `local` of a rule, whose second argument may be an optimiser or a rate:

        >>> local = ccfl.terms.before(ccfl.terms.linear(jnp.array([1.0, -1.0])), optimiser=0.5)
        >>> update, _ = local.update(jnp.zeros(2), local.init(jnp.zeros(2)))
        >>> print(update)
        [-0.5  0.5]
    """
    is_rate = not isinstance(optimiser, optax.GradientTransformation)
    return optax.chain(*terms, optax.sgd(optimiser) if is_rate else optimiser)


def told(term: Callable[[Visit], optax.GradientTransformation], rule: Rule | None = None) -> Rule:
    """`rule` with a term of the local loss that is made for each visit.

    Args:
        term: `term(visit) -> optax transformation` of the gradient.
        rule: what is done besides; by default Algorithm 3.

    Raises:
        ValueError: for a term that is no function.

    Examples:
        >>> rule = ccfl.terms.told(lambda visit: ccfl.terms.proximal(0.25 * visit.staleness))
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> local = rule.local(visit, 1.0)  # of a client that is 3 rounds stale, with the rate 1
        >>> update, _ = local.update(x, local.init(x), x + 1)
        >>> print(update)
        [-0.75 -0.75]
    """
    check_kind("term", term, Callable, "a function of a visit")
    rule = _own(rule)

    def local(visit: Visit, optimiser: Any) -> Any:
        return before(term(visit), optimiser=rule.local(visit, optimiser))

    return rule._replace(local=local)


def sending(transform: optax.GradientTransformation, rule: Rule | None = None) -> Rule:
    """`rule` with its uploads sent through an optax transformation, whose state each client keeps.

    Args:
        transform: clipping, compression, noise. Its `update` gets the upload, x_{t-s} as `params`
            and the `Visit` as the extra argument `visit`, for its client and its key.
        rule: what is done besides; by default Algorithm 3.

    Raises:
        ValueError: for a `rule` of weighted uploads (when the round is traced): write
            `weighted(..., sending(...))`; of uploads that are not like the parameters.

    Examples:
        >>> rule = ccfl.terms.sending(optax.clip_by_global_norm(1.0))
        >>> x = jnp.zeros(2)
        >>> own = rule.memory(x)  # of a client before its first visit
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), own, jax.random.key(0))
        >>> end = ccfl.End(upload=jnp.array([0.0, -4.0]), info=(), params=x, optimiser=())
        >>> print(rule.finish(visit, end)[0])
        [ 0. -1.]
    """
    check_kind(
        "transform", transform, optax.GradientTransformation, "an optax transformation of uploads"
    )
    rule, transform = _own(rule), optax.with_extra_args_support(transform)

    def inner(visit: Visit) -> Visit:
        return visit._replace(memory=visit.memory[0])

    def finish(visit: Visit, end: End) -> tuple[Any, Any]:
        upload, memory = rule.finish(inner(visit), end)
        if isinstance(upload, Weighted):
            raise ValueError(
                "sending: expected a rule of plain uploads, found weighted ones: write "
                "weighted(weight, sending(transform))"
            )
        if jax.tree.structure(upload) != jax.tree.structure(visit.start):
            raise ValueError(
                "sending: expected a rule whose uploads are like the parameters, found others"
            )
        upload, state = transform.update(upload, visit.memory[1], visit.start, visit=visit)
        return upload, (memory, state)

    return rule._replace(
        memory=lambda params: (rule.memory(params), transform.init(params)),
        shared=lambda memory: rule.shared(memory[0]),
        begin=lambda visit: rule.begin(inner(visit)),
        local=lambda visit, optimiser: rule.local(inner(visit), optimiser),
        finish=finish,
    )


def weighted(weight: Weight, rule: Rule | None = None, divide: bool = True) -> Rule:
    r"""`rule` with weighted uploads: :math:`\Delta_t = \sum_i w_i \Delta^i / \sum_i w_i`.

    Args:
        weight: `weight(visit, end) -> w`, a scalar: `by_samples`, `polynomial(0.5)`, ...
        rule: what is done besides; by default Algorithm 3.
        divide: False divides by the number of uploads instead, so a round of small weights takes a
            small step.

    Raises:
        ValueError: for a weight that is no function; when the round is traced, for a `rule` of
            weighted uploads.

    Examples:
        >>> rule = ccfl.terms.weighted(ccfl.terms.by_samples)  # FedAvg's weights
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> end = ccfl.End(upload=jnp.array([3.0, 4.0]), info=(), params=x, optimiser=())
        >>> upload, _ = rule.finish(visit, end)  # of a client of 40 samples
        >>> print(upload.value, upload.weight)
        [120. 160.] 40.0
    """
    check_kind("weight", weight, Callable, "a function, as terms.by_samples")
    rule = _own(rule)

    def finish(visit: Visit, end: End) -> tuple[Any, Any]:
        upload, memory = rule.finish(visit, end)
        factor = jnp.asarray(weight(visit, end), float)
        if isinstance(upload, Weighted):
            raise ValueError("weighted: expected a rule of plain uploads, found weighted ones")
        value = jax.tree.map(lambda a: a * factor.astype(a.dtype), upload)
        return Weighted(value, factor) if divide else value, memory

    return rule._replace(finish=finish)


def by_samples(visit: Visit, end: End) -> jax.Array:
    """n_i, the weight of FedAvg (McMahan et al., 2017).

    Examples:
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> int(ccfl.terms.by_samples(visit, None))  # of a client of 40 samples
        40
    """
    del end
    return visit.size


def constant(scale: float | jax.Array = 1.0) -> Weight:
    """The weight `scale`, whatever the staleness.

    Examples:
        >>> rule = ccfl.systems.fedasync(0.6, ccfl.terms.constant())  # however stale
        >>> ccfl.terms.constant(0.5)(None, None)
        0.5
    """
    scale = check_known("scale", scale)
    return lambda visit, end: scale


def polynomial(power: float | jax.Array = 0.5, scale: float | jax.Array = 1.0) -> Weight:
    r"""The weight :math:`\text{scale}\,(1 + s)^{-\text{power}}` (Xie et al., 2019; FedBuff).

    Examples:
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> float(ccfl.terms.polynomial(0.5)(visit, None))  # of an upload that is 3 rounds stale
        0.5
    """
    power, scale = check_known("power", power), check_known("scale", scale)
    return lambda visit, end: scale * (1 + visit.staleness.astype(float)) ** -power


def hinge(
    slope: float | jax.Array = 10.0,
    after: float | jax.Array = 4.0,
    scale: float | jax.Array = 1.0,
) -> Weight:
    r"""`scale` up to a staleness of b = `after`, then :math:`\text{scale} / (a (s - b) + 1)`, a =
    `slope` (Xie et al., 2019).

    Examples:
        >>> x = jnp.zeros(2)
        >>> visit = ccfl.Visit(*map(jnp.int32, (7, 9, 3, 5, 40)), x, x, (), (), jax.random.key(0))
        >>> weight = ccfl.terms.hinge(slope=1.0, after=2.0)
        >>> float(weight(visit, None))  # of an upload that is 3 rounds stale
        0.5
    """
    slope, after, scale = (
        check_known(name, value)
        for name, value in (("slope", slope), ("after", after), ("scale", scale))
    )

    def weight(visit: Visit, end: End) -> jax.Array:
        del end
        return scale / (slope * jnp.maximum(visit.staleness.astype(float) - after, 0) + 1)

    return weight


def keeping(optimiser: optax.GradientTransformation) -> Rule:
    """A local optimiser whose state each client keeps from visit to visit, instead of a fresh one.

    It stands for the round's `local`, which is not used.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> rule = ccfl.terms.keeping(optax.sgd(0.1, momentum=0.9))
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedsgd(1.0), rule=rule)
        >>> state = simulation.init(jax.random.key(0), num_clients=30)
        >>> [leaf.shape for leaf in jax.tree.leaves(state.clients)]  # a momentum for each client
        [(30, 10), (30, 60, 10)]
    """
    kind = optax.GradientTransformation
    check_kind("optimiser", optimiser, kind, "an optax transformation")
    own = optax.with_extra_args_support(optimiser)
    return Rule(
        memory=own.init,
        local=lambda visit, _: optax.GradientTransformationExtraArgs(
            lambda params: visit.memory, own.update
        ),
        finish=lambda visit, end: (end.upload, end.optimiser),
    )


def _own(rule: Rule | None) -> Rule:
    check_kind("rule", rule, Rule | None, "a ccfl.Rule or None")
    return rule or Rule()
