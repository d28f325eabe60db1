"""Personal models: FedPer and LG-FedAvg (own parts), fine-tuning, Ditto (a model beside)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import tree_util
from ccfl_jax.algorithm.terms import told
from ccfl_jax.algorithm.types import Batch, End, Params, Rule, Task, Visit
from ccfl_jax.checks import check_kind, check_known, check_whole


def personal(own: Callable[[str], bool]) -> Rule:
    """Some leaves of the model stay with their client, from visit to visit; the others are shared.

    The server's copy of own leaves stays as it was.

    Args:
        own: `own(path) -> bool`, of a leaf's path, as `jax.tree_util.keystr` writes it.

    Raises:
        ValueError: for what is no function; if no leaf of the model is its client's own (when a
            state is made).

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.MLP((8,)), (60,), 10)
        >>> rule = ccfl.systems.personal(lambda path: path.startswith("['dense2']"))
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedsgd(1.0), rule=rule)
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> [leaf.shape for leaf in state.clients]  # each client's own leaves
        [(30, 10), (30, 8, 10)]
    """

    check_kind("own", own, Callable, "a function of a leaf's path")

    def kept(params: Params) -> list[jax.Array]:
        named, _ = jax.tree_util.tree_flatten_with_path(params)
        leaves = [leaf for path, leaf in named if own(jax.tree_util.keystr(path))]
        if not leaves:
            paths = ", ".join(jax.tree_util.keystr(path) for path, _ in named)
            raise ValueError(f"own: expected one of {paths[:200]} at least, found none")
        return leaves

    def fill(params: Params, leaves: list[jax.Array]) -> Params:
        rest = iter(leaves)
        return jax.tree_util.tree_map_with_path(
            lambda path, a: next(rest) if own(jax.tree_util.keystr(path)) else a, params
        )

    def finish(visit: Visit, end: End) -> tuple[Params, list[jax.Array]]:
        zeros = [jnp.zeros_like(a) for a in kept(end.upload)]
        return fill(end.upload, zeros), kept(end.params)

    return Rule(memory=kept, begin=lambda visit: fill(visit.start, visit.memory), finish=finish)


def fedper(task: Task, layers: int = 1) -> Rule:
    """FedPer (Arivazhagan et al., 2019, arXiv:1912.00818): the last layers are the client's own.

    Args:
        task: whose `model_layers` they are.
        layers: how many, at least 1, and fewer than the model has.

    Raises:
        ValueError: for another number.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.MLP((8,)), (60,), 10)
        >>> rule = ccfl.systems.fedper(task, layers=1)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedsgd(1.0), rule=rule)
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> [leaf.shape for leaf in state.clients]  # each client's own leaves
        [(30, 10), (30, 8, 10)]
    """
    return personal(_of(_layers(task, layers)[-layers:]))


def lg_fedavg(task: Task, layers: int = 1) -> Rule:
    """LG-FedAvg (Liang et al., 2020, arXiv:2001.01523): the first layers are the client's own.

    Departure: one global model instead of an ensemble at the end. Arguments as for `fedper`.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.MLP((8,)), (60,), 10)
        >>> rule = ccfl.systems.lg_fedavg(task, layers=1)
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedsgd(1.0), rule=rule)
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> [leaf.shape for leaf in state.clients]  # each client's own leaves
        [(30, 8), (30, 60, 8)]
    """
    return personal(_of(_layers(task, layers)[:layers]))


def model_layers(task: Task) -> list[str]:
    """The outermost parts of a model's parameters, in the order in which `Task.init` makes them.

    Flax makes them in the order of the forward pass. Names as `jax.tree_util.keystr` writes them,
    "['dense1']".

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.MLP((8,)), (60,), 10)
        >>> ccfl.systems.model_layers(task)
        ["['dense1']", "['dense2']"]
    """
    check_kind("task", task, Task, "a ccfl.Task")
    traced, shapes = jax.make_jaxpr(task.init, return_shape=True)(jax.random.key(0))
    program = traced.jaxpr
    while len(program.eqns) == 1 and "jaxpr" in program.eqns[0].params:  # of jax.jit
        program = program.eqns[0].params["jaxpr"].jaxpr
    made = {id(one): k for k, step in enumerate(program.eqns) for one in step.outvars}
    named, _ = jax.tree_util.tree_flatten_with_path(shapes)
    first: dict[str, float] = {}
    for (path, _), one in zip(named, program.outvars, strict=True):
        name = jax.tree_util.keystr(path[:1])
        first[name] = min(first.get(name, math.inf), made.get(id(one), math.inf))
    return sorted(first, key=lambda name: first[name])


def _layers(task: Task, count: int) -> list[str]:
    """The model's layers; ValueError where `count` of them leave none to share."""
    check_whole("layers", count, 1)
    names = model_layers(task)
    if count >= len(names):
        raise ValueError(
            f"layers: expected fewer than the {len(names)} of the model, {', '.join(names)[:200]}, "
            f"found {count}"
        )
    return names


def _of(names: list[str]) -> Callable[[str], bool]:
    return lambda path: path.startswith(tuple(names))


def own_model(rule: Rule) -> Callable[[Params, Any], Params]:
    """`own(params, memory)`, a client's own model, as `evaluate_clients` takes it.

    It is the model that the client's next visit would start from; of `ditto` the client's own in
    both places, so that the task's metrics are of it.

        ccfl.evaluate_clients(task, state.params, data, own=own_model(rule), memories=state.clients)

    Args:
        rule: `personal`, `fedper`, `lg_fedavg` or that of `ditto`, perhaps with more around it.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.MLP((8,)), (60,), 10)
        >>> rule = ccfl.systems.fedper(task)
        >>> own, params = ccfl.systems.own_model(rule), task.init(jax.random.key(0))
        >>> memory = [jnp.full_like(leaf, 7.0) for leaf in rule.memory(params)]
        >>> jax.tree.map(lambda leaf: bool((leaf == 7).all()), own(params, memory))
        {'dense1': {'bias': False, 'kernel': False}, 'dense2': {'bias': True, 'kernel': True}}
    """

    def own(params: Params, memory: Any) -> Params:
        numbers = dict.fromkeys(("client", "round", "staleness", "steps", "size"), jnp.int32(0))
        more = {"message": (), "memory": memory, "key": jax.random.key(0)}
        visit = Visit(**numbers, start=params, current=params, **more)
        found = rule.begin(visit)
        return Both(found.own, found.own) if isinstance(found, Both) else found

    return own


def fine_tuning() -> Rule:
    """Every client keeps the model that its local work ends with; the global one does not move.

    A round of it, with everybody there, fine-tunes a trained model for each client, which
    `evaluate_clients` then scores:


    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> trained = task.init(jax.random.key(0))  # take a model that is
        >>> rule = ccfl.systems.fine_tuning()
        >>> simulation = ccfl.simulation(task, ccfl.cc_fedavg(), local=0.1, rule=rule)
        >>> state = simulation.init(jax.random.key(0), num_clients=30, params=trained)
        >>> jax.tree.map(jnp.shape, state.clients)  # each client's model, the trained one at first
        {'dense': {'bias': (30, 10), 'kernel': (30, 60, 10)}}
    """

    def still(delta: Any, mean: Any, state: Any) -> Params:
        del delta, mean
        return jax.tree.map(jnp.zeros_like, tree_util.wide(state.params))

    return Rule(
        memory=lambda params: params, finish=lambda visit, end: ((), end.params), combine=still
    )


class Both(NamedTuple):
    """The models of a client of `ditto`.

    Attributes:
        shared: the global model.
        own: the client's.
    """

    shared: Params
    own: Params


def ditto(task: Task, weight: float | jax.Array = 0.1) -> tuple[Task, Rule]:
    r"""Ditto (Li et al., 2021, arXiv:2012.04221): each client also trains a model v_i of its own on

    .. math:: f_i(v) + \frac\lambda2 |v - x_{t-s}|^2

    The global model's training is that of the round, untouched. Both models take the same batches
    and as many steps; v_i is kept from visit to visit, and starts from x_0.

    Args:
        task: that of one model.
        weight: lambda, at least 0.

    Returns:
        A task of two models, a `Both`, whose metrics are those of `shared`; and its rule, whose
        memories are the clients' own models.

    Raises:
        ValueError: for a negative weight.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.MLP((8,)), (60,), 10)
        >>> both, rule = ccfl.systems.ditto(task, weight=0.1)
        >>> simulation = ccfl.simulation(both, ccfl.cc_fedavg(), normalise="none", rule=rule)
        >>> state = simulation.init(jax.random.key(0), history_length=6, num_clients=30)
        >>> state.params._fields
        ('shared', 'own')
        >>> len(state.clients)  # leaves of the models of their own
        4
    """
    return _two(task), beside(weight)


def _two(task: Task) -> Task:
    """The task of two models."""
    check_kind("task", task, Task, "a ccfl.Task")

    def init(key: jax.Array) -> Both:
        first = task.init(key)
        return Both(first, first)

    def loss(params: Both, batch: Batch, mask: jax.Array, key: jax.Array) -> jax.Array:
        return task.loss(params.shared, batch, mask, key) + task.loss(params.own, batch, mask, key)

    def metrics(params: Both, batch: Batch, mask: jax.Array) -> dict:
        return task.metrics(params.shared, batch, mask)

    return Task(init, loss, metrics, labels=task.labels)


def beside(weight: float | jax.Array = 0.1) -> Rule:
    """The rule of `ditto`, whatever the task of one model is."""
    weight = check_known("weight", weight)

    def towards(visit: Visit) -> optax.GradientTransformation:
        def pull(updates: Any, params: Any) -> Both:
            trees = updates.own, params.own, visit.start.shared
            own = jax.tree.map(lambda g, v, x: (g + weight * (v - x)).astype(g.dtype), *trees)
            return updates._replace(own=own)

        return optax.stateless(pull)

    return told(towards, personal(_of([".own"])))
