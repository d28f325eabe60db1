"""The state before round 0."""

import jax
import jax.numpy as jnp
import optax

from ccfl_jax.algorithm import aggregators as aggregation
from ccfl_jax.algorithm import client_memory, tree_util
from ccfl_jax.algorithm import model_history as past
from ccfl_jax.algorithm.types import Aggregate, Params, Rule, Task
from ccfl_jax.data.arrays import held
from ccfl_jax.engine.method_checks import (
    as_a_round_takes_it,
    check_key,
    check_kinds,
    check_params,
)
from ccfl_jax.engine.rule_checks import named
from ccfl_jax.engine.state import State

# Streams of one seed: a new consumer takes a new number, so the others draw the same.
_INIT_STREAM, _LOCAL_STREAM = range(2)


def init_state(
    task: Task,
    server: optax.GradientTransformation,
    key: jax.Array,
    history_length: int = 1,
    aggregate: Aggregate | None = None,
    rule: Rule | None = None,
    num_clients: int | None = None,
    memories: int | None = None,
    params: Params | None = None,
    init_key: jax.Array | None = None,
) -> State:
    """The state before round 0.

    Args:
        task, server, aggregate, rule: those of `build_round`.
        key: PRNG key; the initial model and the local randomness are separate streams of it.
        history_length: global models kept: max_delay + 1, or `Schedule.history_slots()` for a
            planned schedule.
        num_clients: n, needed by a rule that keeps memories.
        memories: how many of them are kept: n by default, or `Schedule.memory_rows()` for a
            schedule `remembered()`.
        params: x_0, instead of the task's: a trained model, for example.
        init_key: PRNG key of the initial model, by default `key`; of the same stream.

    Raises:
        ValueError: if `history_length` is below 1, for a part of another kind than its name says,
            parameters that are no floats or not like the task's, a key of another generator than
            threefry2x32, no `num_clients` for a rule that keeps memories, and more of those than a
            device holds.

    Examples:
        >>> task = ccfl.classification_task(ccfl.models.Logistic(10), (60,), 10)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=20, num_clients=4, buffer_size=2)
        >>> state = ccfl.init_state(
        ...     task,
        ...     ccfl.cc_fedams(0.05),
        ...     jax.random.key(0),
        ...     history_length=schedule.history_slots(),
        ... )
        >>> int(state.round), jax.tree.map(jnp.shape, state.params)
        (0, {'dense': {'bias': (10,), 'kernel': (60, 10)}})
    """
    init_key = key if init_key is None else init_key
    check_key(key)
    check_key(init_key)
    server = as_a_round_takes_it(server)
    check_kinds(task, server, aggregate, rule)
    rule = named(rule or Rule())
    params = _first_params(task, jax.random.fold_in(init_key, _INIT_STREAM), params)
    server_state, first = server.init(tree_util.wide(params)), rule.memory(params)
    # Before the first visit all clients remember the same.
    mean = tree_util.wide(rule.shared(first))
    state = State(
        params=params,
        server=server_state,
        history=past.init(params, history_length),
        aggregate=(aggregate or aggregation.mean()).init(params),
        round=jnp.zeros((), jnp.int32),
        key=jax.random.fold_in(key, _LOCAL_STREAM),
        clients=client_memory.init(first, num_clients, memories),
        shared=jax.tree.map(lambda a: a * num_clients, mean),
    )
    message = rule.message(mean, state)
    return _unshared(state._replace(history=past.init(params, history_length, message)))


def _first_params(task: Task, key: jax.Array, own: Params | None) -> Params:
    """x_0: the task's, or one's own, which has the same form.

    With dtypes of their own: Python's numbers would compile the first piece apart. Copied, as a
    user's own arrays are not to be donated.
    """
    first = held("params", task.init(key) if own is None else own)
    params = jax.tree.map(lambda a: jnp.array(a, jnp.asarray(a).dtype), first)
    check_params(params)
    if own is not None:
        wanted, found = _forms(jax.eval_shape(task.init, key)), _forms(params)
        for path in [path for path in {**wanted, **found} if wanted.get(path) != found.get(path)]:
            raise ValueError(
                f"params: expected {wanted.get(path, 'nothing')} at {path or 'the top'}, as the "
                f"task has, found {found.get(path, 'nothing')}"
            )
    return params


def _forms(params: Params) -> dict[str, str]:
    """path -> dtype and shape of each leaf."""
    named, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path): f"{a.dtype}{[*a.shape]}" for path, a in named}


def _unshared(state: State) -> State:
    """The state with no array twice in it, of which the buffer could be donated only once."""
    seen: set[int] = set()

    def own(leaf: jax.Array) -> jax.Array:
        if id(leaf) in seen:
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(own, state)
